"""Whether the torch that was installed is the build an image of this variant must hold."""

import sys

import torch

CUDA = {"cpu": False, "cuda": True}


def complaint(variant: str, cuda: str | None, version: str) -> str:
    """What is wrong; empty: nothing.

    Args:
        variant: of the image, `cpu` or `cuda`.
        cuda: the CUDA version that torch was built for; None: none.
        version: of torch.
    """
    if variant not in CUDA:
        return f"image: VARIANT is {variant!r}, expected one of {sorted(CUDA)}"
    if CUDA[variant] == (cuda is not None):
        return ""
    found = f"built for CUDA {cuda}" if cuda else "built without CUDA"
    return (
        f"image: torch {version} is {found}, VARIANT is {variant!r}; say where the right build is "
        "with --build-arg PIP_ARGS='--index-url …', or choose the other variant"
    )


if __name__ == "__main__":
    sys.exit(complaint(sys.argv[1], torch.version.cuda, torch.__version__) or None)
