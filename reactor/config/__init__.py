"""Documents to words: KubeletConfiguration, v1.Pod and reactor's own section, every problem with its path."""
