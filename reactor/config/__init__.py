"""Documents to words: KubeletConfiguration, v1.Pod and reactor's own section, every problem with its path."""

from reactor.config.settings import load_settings, settings_from_text

__all__ = ["load_settings", "settings_from_text"]
