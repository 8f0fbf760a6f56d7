"""The parts of `time_to_accuracy.py`: runs of the service and TRL on the demo, and the accuracy of their versions."""
