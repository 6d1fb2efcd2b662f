"""What a study is asked: which data, which methods, how many workers, over which network, trained how.

The field names are the keys of the TOML file. Every key has a default but the name of a method, so that an empty file
is the study of the issue it came from: ten configurations on CIFAR-10, eight workers.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from sandtable.cluster.files import check, read
from sandtable.cluster.tables import Count, Rate, Share, Speed, Table, broken
from sandtable.errors import ClusterError, StudyError
from sandtable.study.default_methods import default_methods
from sandtable.study.method import Method

__all__ = ["Network", "StudySettings", "Training", "load_settings", "settings_of"]

MAX_WORKERS = 200


class Training(Table):
    """How every worker trains. The rates are tuned for bulk-synchronous SGD: a weak baseline proves nothing."""

    learning_rate: Speed = Field(default=0.15, description="the highest rate of SGD, reached after the warm-up")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.9, description="momentum of SGD, such as 0.9")
    weight_decay: Rate = Field(default=5e-4, description="weight decay of SGD, such as 0.0005")
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description='"cosine" (down to 0 at the end) or "constant"'
    )
    warm_up_epochs: Rate = Field(default=5.0, description="epochs in which the rate rises from 0, such as 5")
    augment: bool = Field(default=True, description="whether images are mirrored and shifted at random")


class Network(Table):
    """Over what the workers talk: this machine's loopback, or the lab's hosts with links of a given rate."""

    kind: Literal["loopback", "lab"] = Field(default="loopback", description='"loopback" or "lab"')
    rate_mbit: Speed = Field(default=100.0, description="rate of each host's link on the lab in Mbit/s, such as 100")
    cores_per_host: Rate | None = Field(
        default=None, description="processors of each host of the lab, such as 0.25; 0: no limit; left out: equal parts"
    )


class StudySettings(Table):
    """A whole study."""

    data: Literal["cifar10", "fashion-mnist", "synthetic"] = Field(
        default="cifar10", description='the images: "cifar10", "fashion-mnist" or "synthetic"'
    )
    model: Literal["small-cnn", "tiny-cnn"] = Field(
        default="small-cnn", description='"small-cnn" (half a million parameters) or "tiny-cnn" (for quick runs)'
    )
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = Field(default=8, description="the number of workers")
    batch: Count = Field(default=100, description="images in a step of one worker")
    epochs: Count = Field(default=30, description="times that all images are gone through")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="what all randomness comes from")
    images_share: Share = Field(default=1.0, description="the part of the data set that is used, such as 0.1")
    training: Training = Field(default=Training(), description="the table [training]")
    network: Network = Field(default=Network(), description="the table [network]")
    methods: Annotated[list[Method], Field(min_length=1)] = Field(
        default_factory=default_methods, description="the tables [[methods]], one a configuration"
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "StudySettings":
        files = [method.file_name for method in self.methods]
        if twice := next((name for name in files if files.count(name) > 1), None):
            remedy = "letters and digits tell them apart: rename one"
            raise broken("methods", "of different names", twice, remedy)
        return self

    def index_of(self, name: str) -> int:
        """Where the method of that name is."""
        return [method.name for method in self.methods].index(name)

    def training_of(self, method: Method) -> Training:
        """How that method trains: [training], with what the method has of its own."""
        own = {key: value for key in Training.model_fields if (value := getattr(method, key, None)) is not None}
        return self.training.model_copy(update=own)

    def fingerprint(self, method: Method) -> str:
        """Eight letters that change when anything changes that this run's result depends on."""
        facts = self.model_dump(exclude={"methods"}) | {
            "method": method.model_dump(exclude={"name"}, exclude_none=True)
        }
        if self.network.kind == "loopback":
            facts["network"] = "loopback"
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]

    def changed(self, **values: Any) -> "StudySettings":
        """These settings with some of them replaced; None: left as it is. Keys of [network] are given as such."""
        given = {key: value for key, value in values.items() if value is not None}
        network = {key: given.pop(key) for key in list(given) if key in Network.model_fields}
        data = self.model_dump() | given
        data["network"] = data["network"] | network
        return settings_of(data, source="command line")


def load_settings(file: Path) -> StudySettings:
    """The settings in a TOML file, checked; StudyError with file, key, rule, value and remedy otherwise."""
    try:
        return check(read(file), StudySettings, file=file)
    except ClusterError as error:
        raise StudyError(str(error)) from None


def settings_of(data: dict[str, Any], *, source: str) -> StudySettings:
    """Settings from plain data, such as a stored study's."""
    try:
        return check(data, StudySettings, file=Path(source))
    except (ClusterError, ValidationError) as error:
        raise StudyError(str(error)) from None
