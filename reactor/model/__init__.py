"""The words: signal, threshold, observation, pod, condition, decision. Values only, no I/O, no clock."""
