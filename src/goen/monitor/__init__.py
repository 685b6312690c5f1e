"""Sequential monitoring of a gate's images: has the stream changed?"""

from goen.monitor.monitor import Monitor
from goen.monitor.state import ChangePoint, MonitorState, StreamState

__all__ = ["ChangePoint", "Monitor", "MonitorState", "StreamState"]
