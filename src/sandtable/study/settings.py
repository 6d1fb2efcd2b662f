"""Settings of a study: which data, which methods, how many workers, over which network, trained how.

The field names are the keys of the TOML file. Every key but the name of a method has a default, so an empty file is a
complete study: ten configurations on CIFAR-10 with eight workers.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sandtable.errors import StudyError
from sandtable.study.method import Method, default_methods
from sandtable.toml_tables import Count, Rate, Share, Speed, TomlTable, broken_rule, check_table, load_table

__all__ = ["StudyNetwork", "StudySettings", "Training", "load_settings", "settings_from"]

MAX_WORKERS = 200


class Training(TomlTable):
    """How every worker trains. The defaults are tuned for bulk-synchronous SGD: a weak baseline proves nothing."""

    learning_rate: Speed = Field(default=0.15, description="the highest rate of SGD, reached after the warm-up")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.9, description="momentum of SGD, such as 0.9")
    weight_decay: Rate = Field(default=5e-4, description="weight decay of SGD, such as 0.0005")
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description='"cosine" (down to 0 at the end) or "constant"'
    )
    warm_up_epochs: Rate = Field(default=5.0, description="epochs in which the rate rises from 0, such as 5")
    augment: bool = Field(default=True, description="whether images are mirrored and shifted at random")

    def rate_at(self, step: int, *, steps_per_epoch: int, epochs: int) -> float:
        """Return the learning rate of `step`, counted from 0 over all epochs.

        It rises linearly, for a quarter of a short training at most, then falls along a cosine or stays constant.
        """
        total = steps_per_epoch * epochs
        rise = min(self.warm_up_epochs, epochs / 4) * steps_per_epoch
        if step + 1 < rise:
            return self.learning_rate * (step + 1) / rise
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step + 1 - rise) / max(1.0, total - rise + 1)))


class StudyNetwork(TomlTable):
    """The network between workers: this machine's loopback, or the lab's hosts with links of a given rate."""

    kind: Literal["loopback", "lab"] = Field(default="loopback", description='"loopback" or "lab"')
    rate_mbit: Speed = Field(default=100.0, description="rate of each host's link on the lab in Mbit/s, such as 100")
    cores_per_host: Rate | None = Field(
        default=None,
        description="processors per host of the lab, such as 0.25; 0: unlimited; left out: equal parts of this machine",
    )


class StudySettings(TomlTable):
    """A whole study."""

    data: Literal["cifar10", "fashion-mnist", "synthetic"] = Field(
        default="cifar10", description='the images: "cifar10", "fashion-mnist" or "synthetic"'
    )
    model: Literal["small-cnn", "tiny-cnn"] = Field(
        default="small-cnn", description='"small-cnn" (half a million parameters) or "tiny-cnn" (for quick runs)'
    )
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = Field(default=8, description="the number of workers")
    batch: Count = Field(default=100, description="images per step of one worker")
    epochs: Count = Field(default=30, description="passes over all images")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="the source of all randomness")
    images_share: Share = Field(default=1.0, description="the part of the data set to use, such as 0.1")
    training: Training = Field(default=Training(), description="the table [training]")
    network: StudyNetwork = Field(default=StudyNetwork(), description="the table [network]")
    methods: Annotated[list[Method], Field(min_length=1)] = Field(
        default_factory=default_methods, description="the tables [[methods]], one per configuration"
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "StudySettings":
        files = [method.file_name for method in self.methods]
        if twice := next((name for name in files if files.count(name) > 1), None):
            remedy = "only letters and digits count: rename one"
            raise broken_rule("methods", "of different names", twice, remedy)
        return self

    def index_of(self, name: str) -> int:
        """Return the index of the method of that name."""
        return [method.name for method in self.methods].index(name)

    def training_of(self, method: Method) -> Training:
        """Return how that method trains: [training], with the method's own values in place of the common ones."""
        own = {key: value for key in Training.model_fields if (value := getattr(method, key, None)) is not None}
        return self.training.model_copy(update=own)

    def fingerprint(self, method: Method) -> str:
        """Return eight characters that change with anything that this method's result depends on."""
        facts = self.model_dump(exclude={"methods"}) | {
            "method": method.model_dump(exclude={"name"}, exclude_none=True)
        }
        if self.network.kind == "loopback":
            facts["network"] = "loopback"
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]

    def changed(self, **values: Any) -> "StudySettings":
        """Return these settings with the values that are not None replaced; keys of [network] are given directly."""
        given = {key: value for key, value in values.items() if value is not None}
        network = {key: given.pop(key) for key in list(given) if key in StudyNetwork.model_fields}
        data = self.model_dump() | given
        data["network"] = data["network"] | network
        return settings_from(data, source="command line")


def load_settings(file: Path) -> StudySettings:
    """Load and check a TOML file; raise StudyError with file, key, rule, value and remedy if it is wrong."""
    return load_table(file, StudySettings, error=StudyError)


def settings_from(data: dict[str, Any], *, source: str) -> StudySettings:
    """Check settings given as plain data, such as those of a stored study."""
    return check_table(data, StudySettings, file=Path(source), error=StudyError)
