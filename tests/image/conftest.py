"""The image, built once for all tests here."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import ROOT, modes
from tests.image.sandbox import Sandbox, context_files, instructions


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The image, built on this machine from the tracked files."""
    tools = all(shutil.which(name) for name in ("unshare", "nsenter", "setpriv", "ip"))
    if os.getuid() != 0 or not tools or subprocess.run(["unshare", "-mn", "true"]).returncode:
        pytest.skip("kernel namespaces are needed: root, util-linux, iproute2")
    context = tmp_path_factory.mktemp("context")
    for path in context_files(ROOT, [Path(name) for name in modes()]):
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, context / path, follow_symlinks=False)
    sandbox = Sandbox(tmp_path_factory.mktemp("image") / "root", context, {"VARIANT": "cpu"})
    recipe = instructions(ROOT / "Dockerfile")
    try:
        sandbox.build([[one for one in recipe if one.stage == name] for name in STAGES])
        yield sandbox
    finally:
        sandbox.close()


STAGES = ("build", "runtime")
