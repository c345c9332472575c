"""`python -m kaitian_emulator calibrate`."""

from __future__ import annotations

import argparse


def main() -> None:
    """Print what a core of this machine can do at the nominal pace."""
    parser = argparse.ArgumentParser(prog="python -m kaitian_emulator", description="Emulated accelerators")
    parser.add_argument("command", choices=["calibrate"], help="measure the nominal pace at slowness 1")
    parser.parse_args()
    from kaitian_emulator._calibrate import calibrate

    pace = calibrate()
    print(f'Pace("nominal", fixed={pace.fixed:.3g}, flop_rate={pace.flop_rate:.3g}, byte_rate={pace.byte_rate:.3g})')


if __name__ == "__main__":
    main()
