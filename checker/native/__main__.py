"""`python -m tocsin.checker.native`: build the operators now, or say why there are none."""

from tocsin.checker.native import build
from tocsin.core.errors import EnvironmentFault


def main() -> None:
    """Print one line; a machine without a compiler is no failure."""
    try:
        print("setup: native operators in", build.build())
    except EnvironmentFault as error:
        print("setup:", error)


if __name__ == "__main__":
    main()
