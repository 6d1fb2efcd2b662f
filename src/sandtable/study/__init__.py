"""WHICH METHOD SUITS THIS CLUSTER: the same training by several methods, on real data, measured side by side.

Think of a wind tunnel: one model after another is put into the same stream of air, and the same scales are read. Here
the stream is a network as slow as asked for, and the scales are accuracy, time, and bytes on the wire.
"""

from sandtable.study.default_methods import default_methods
from sandtable.study.method import Method
from sandtable.study.settings import Network, StudySettings, Training, load_settings

__all__ = ["Method", "Network", "StudySettings", "Training", "default_methods", "load_settings"]
