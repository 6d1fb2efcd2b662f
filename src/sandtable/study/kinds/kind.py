"""A kind of method, as settings: what it is called in a file, whether it can work, and who trains by it."""

from abc import ABC, abstractmethod
from typing import ClassVar

from sandtable.study.kinds.setup import Setup
from sandtable.study.kinds.trainer import Trainer
from sandtable.study.settings import StudySettings

__all__ = ["Kind"]


class Kind(ABC):
    """`has_rate`: whether it goes by a learning rate, so that a method of this kind may have one of its own."""

    has_rate: ClassVar[bool] = True

    @abstractmethod
    def check(self, settings: StudySettings) -> None:
        """Refuse what cannot work in such a study, with rule, value and remedy, before anything runs."""

    @abstractmethod
    def trainer(self, setup: Setup) -> Trainer:
        """This worker's part. All workers make theirs at the same time."""
