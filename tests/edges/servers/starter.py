"""starter.py STATE RUN LOG COMMAND…: a small bringup: starts the command as its child, says so, and saves how far it
read."""

import sys
import time
from pathlib import Path

from app.targets.child import Child

state, run, log = sys.argv[1:4]
child = Child(Path(state), run)
child.start(sys.argv[4:], None, Path(log), notes={"attempt": 1})
print("started", flush=True)
while child.poll() is None:
    child.save(offset=Path(log).stat().st_size)
    time.sleep(0.01)
