"""count.py N SECONDS: prints N numbered lines, SECONDS apart, then "done", and waits to be stopped (exit status 5)."""

import signal
import sys
import time

signal.alarm(120)  # whatever the test does, this ends
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
for number in range(int(sys.argv[1])):
    print(f"line {number}")
    time.sleep(float(sys.argv[2]))
print("done")
while True:
    signal.pause()
