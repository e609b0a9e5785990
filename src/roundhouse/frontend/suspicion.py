"""`Suspicion`: whether a request kills the engines that get it. One for each live request. Pure.

A loss speaks against the request when its cause may be the request's doing and no token came since the loss before. But
most engines are lost for reasons of their own: a cut cable, a frozen machine, an operator's kill. So each loss is kept
with the engine's identity and epoch until the engine is seen again. The same epoch: the process never died, and the
loss is struck out. A higher one: it died, as it has when it said so itself.

`MAX_DEATHS` engines that are known to have died are enough to give the request up. While nobody knows, it takes
`MAX_LOSSES`: what really kills is not handed around a fleet whose engines are slow to return.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from roundhouse.frontend.loss import DEADLY, LossCause
from roundhouse.protocol.messages import Hello

MAX_DEATHS = 3
MAX_LOSSES = 6


@dataclass(frozen=True, slots=True)
class FruitlessLoss:
    """is_death: the engine is known to have died."""

    identity: str
    epoch: tuple[int, int]
    is_death: bool


@dataclass(slots=True)
class Suspicion:
    """losses: the oldest first, each of another life of an engine or of another session with it."""

    losses: list[FruitlessLoss] = field(default_factory=lambda: list[FruitlessLoss]())

    @property
    def is_poisoned(self) -> bool:
        """The request is to be given up."""
        return len(self.losses) >= MAX_LOSSES or sum(loss.is_death for loss in self.losses) >= MAX_DEATHS

    @property
    def is_suspect(self) -> bool:
        """One more loss may be the last: it must not share an engine with another suspect, or both may pay for one."""
        return len(self.losses) >= MAX_DEATHS - 1

    def on_loss(self, engine: Hello, cause: LossCause) -> None:
        """A lost frame speaks neither for nor against the request; what is not its doing clears it."""
        if cause in DEADLY:
            self.losses.append(FruitlessLoss(engine.identity, engine.epoch, cause is LossCause.DIED))
        elif cause is not LossCause.GAP:
            self.losses.clear()

    def on_token(self) -> None:
        self.losses.clear()

    def on_seen(self, engine: Hello) -> None:
        """An engine was admitted."""
        self.losses = [
            replace(loss, is_death=True) if self._is_successor(engine, loss) else loss
            for loss in self.losses
            if loss.is_death or (loss.identity, loss.epoch) != (engine.identity, engine.epoch)
        ]

    @staticmethod
    def _is_successor(engine: Hello, loss: FruitlessLoss) -> bool:
        return engine.identity == loss.identity and engine.epoch > loss.epoch
