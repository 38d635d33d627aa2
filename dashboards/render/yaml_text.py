"""YAML as a person would write it: in order, long text in blocks, Chinese as Chinese."""

from typing import Any

import yaml

HEAD = (
    "# Written by `tocsin alerts render` from dashboards/; edit the declarations, not this file.\n"
)


class _Dumper(yaml.SafeDumper):
    """Safe dumper with block text and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out: anchors are hard to read and some readers refuse them."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(document: Any, head: str = HEAD) -> str:
    """The document, with a first line that says where it comes from."""
    body: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return head + body
