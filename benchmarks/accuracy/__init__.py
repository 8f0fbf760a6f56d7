"""The parts of `verifier_accuracy.py`: packages, suites of rows, and the checkers that ours are compared with."""
