"""What `time_to_accuracy` measures: runs of the service and of TRL on the demo, and the accuracy of their versions."""
