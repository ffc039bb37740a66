"""Facts and services of the process: C declarations, knobs, files, locks, the machine. Imports no other package."""
