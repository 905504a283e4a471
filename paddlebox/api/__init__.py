"""The Python API: functions for a program or a notebook, each of which does one whole job."""
