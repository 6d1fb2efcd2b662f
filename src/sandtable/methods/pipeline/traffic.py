"""Traffic: what a rank of a pipeline has sent, by what it was for."""

from dataclasses import dataclass

__all__ = ["Traffic"]


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Payload bytes this rank sent, and its messages. Weights are gradients averaged among replicas, and ties."""

    activation_bytes: int = 0
    gradient_bytes: int = 0
    weight_bytes: int = 0
    control_bytes: int = 0
    """Headers and shapes."""
    messages: int = 0

    def reset(self) -> None:
        self.activation_bytes = self.gradient_bytes = self.weight_bytes = self.control_bytes = self.messages = 0

    @property
    def sent_bytes(self) -> int:
        return self.activation_bytes + self.gradient_bytes + self.weight_bytes + self.control_bytes
