"""What the lab is to build: hosts with a cable each, and sites whose cable to the others all their hosts share."""

import math
from dataclasses import dataclass

from sandtable.errors import LabError

__all__ = ["Host", "Plan", "Site"]

MAX_HOSTS = 200
"""As many as one /24 of addresses holds, with room to spare; a machine gives up long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine. Its cable carries `bandwidth_bytes_per_s` each way, counted as Ethernet frames; 0: not slowed.

    `cores` is the share of this machine's processors that it may use (0: as much as it gets), so that a host computes
    at the same speed whether the others are busy or idle.
    """

    name: str
    bandwidth_bytes_per_s: float = 0.0
    site: str = ""
    cores: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place. What its hosts exchange with other sites shares one cable of `bandwidth_bytes_per_s`; 0: not slowed."""

    name: str
    bandwidth_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All hosts and all sites. A plan without sites is one switch that every host is plugged into."""

    hosts: tuple[Host, ...]
    sites: tuple[Site, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MAX_HOSTS:
            raise LabError(f"a lab must have 1 to {MAX_HOSTS} hosts, but got {len(self.hosts)}; change the nodes")
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise LabError(f"hosts of a lab must have different names, but got {', '.join(names)}; rename some")
        if bad := next((name for name in names if not _is_host_name(name)), None):
            raise LabError(
                f"a host's name must be letters, digits and hyphens, at most 60, but got '{bad}'; use host0 or so"
            )
        known = {site.name for site in self.sites} | ({""} if not self.sites else set())
        if lost := next((host for host in self.hosts if host.site not in known), None):
            raise LabError(
                f"host {lost.name} must be at a site of the plan, but '{lost.site}' is none of {sorted(known)}"
            )
        cables = [(each.name, each.bandwidth_bytes_per_s) for each in self.hosts]
        cables += [(each.name, each.bandwidth_bytes_per_s) for each in self.sites]
        for name, rate in cables:
            if not 0 <= rate < math.inf:
                raise LabError(f"bandwidth of {name} must be 0 (no limit) or more, but got {rate}; correct it")

    @classmethod
    def uniform(cls, num_hosts: int, *, bandwidth_bytes_per_s: float, cores: float = 0.0) -> "Plan":
        """`num_hosts` equal hosts at one switch."""
        return cls.of_bandwidths([bandwidth_bytes_per_s] * num_hosts, cores=cores)

    @classmethod
    def of_bandwidths(cls, bandwidths_bytes_per_s: list[float], *, cores: float = 0.0) -> "Plan":
        """A host for each bandwidth, at one switch, called host0, host1, ..."""
        return cls(
            hosts=tuple(
                Host(name=f"host{index}", bandwidth_bytes_per_s=bandwidth, cores=cores)
                for index, bandwidth in enumerate(bandwidths_bytes_per_s)
            )
        )


def _is_host_name(name: str) -> bool:
    return 0 < len(name) <= 60 and name.replace("-", "").isalnum() and name.isascii() and name[0] != "-"
