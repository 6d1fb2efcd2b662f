"""WITH WHOM: how the vectors of the ranks become one, or more alike."""

from sandtable.methods.exchange.all_reduce import AllReduce
from sandtable.methods.exchange.exchange import Cost, Exchange, Line, Mixer
from sandtable.methods.exchange.gossip import Gossip
from sandtable.methods.exchange.hierarchical import Hierarchical

__all__ = ["AllReduce", "Cost", "Exchange", "Gossip", "Hierarchical", "Line", "Mixer"]
