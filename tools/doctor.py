"""Is this machine fit for training? python tools/doctor.py --folder DIR_ON_THE_DISK"""

import sys

from paddlebox.launch.doctor import doctor_main

if __name__ == "__main__":
    sys.exit(doctor_main())
