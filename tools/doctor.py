"""Checks whether a machine is fit for training: python tools/doctor.py --folder DIR_ON_THE_DISK"""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036  # another Python may run this file
        sys.exit(f"fails python: {sys.version.split()[0]}, expected 3.11 or later")
    import installed  # noqa: F401

    try:
        from paddlebox.launch import sigpipe
        from paddlebox.tools.doctor.cli import doctor_main
    except ModuleNotFoundError as error:
        sys.exit(f"fails packages: not installed: {error.name}\n      -> pip install it here")
    with sigpipe.handled():
        sys.exit(doctor_main())
