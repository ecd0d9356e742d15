"""end.py exit N | signal N | spawn-exit N: ends with a status or by a signal; `spawn-exit` leaves a child behind."""

import os
import subprocess
import sys

what, number = sys.argv[1], int(sys.argv[2])
print("ready")
if what == "signal":
    os.kill(os.getpid(), number)
if what == "spawn-exit":
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print(f"child {child.pid}", flush=True)
    child.returncode = 0  # it is to outlive us, on purpose
os._exit(number)
