"""The options of the splits (``split_options``): type, default, bounds and meaning of each, and when it has an effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coordinator_free_bootstrap.errors import TaskError
from coordinator_free_bootstrap.options import EffectiveWhen, Whole, WrongOption, parsed

S = TypeVar("S", bound="SplitOptions")
Degrees = Literal[0, 90, 180, 270]
Turns = Annotated[
    Literal[1, 2, 4],
    Field(description="number of rotations: 1, 2 or 4, at equal angles"),
    EffectiveWhen(lambda o: o.rotations is None, "run.split_options.rotations lists them"),
]


class SplitOptions(BaseModel):
    """Of every split."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    samples_per_peer: Whole = Field(0, ge=0, description="largest number of training samples of a peer; 0: no limit")
    test_per_peer: Whole = Field(0, ge=0, description="largest number of test samples of a peer; 0: no limit")
    validation: float = Field(
        0.0, ge=0, le=0.9, description="share of the training samples that is held out for validation"
    )

    @classmethod
    def of(cls, values: Mapping[str, object], split: str) -> Self:
        """Return the options of a manifest.

        Raises:
            TaskError: an option is unknown, out of range or without effect.
        """
        return parsed(cls, values, "run.split_options.{}".format, TaskError, f"split {split!r}")


class Rotations(SplitOptions):
    """One rotation for each cluster."""

    k: Turns = 2
    rotations: list[Degrees] | None = Field(
        None, min_length=1, description="list of 0, 90, 180 or 270 degrees, in place of k"
    )

    @property
    def turns(self) -> list[int]:
        """Quarter turns of each cluster."""
        if self.rotations is None:
            return [r * (4 // self.k) for r in range(self.k)]
        return [degrees // 90 for degrees in self.rotations]


class WriterOptions(Rotations):
    """Of ``writers``: upright, if nothing is said."""

    k: Turns = 1


class Fractions(SplitOptions):
    """Fraction of a peer's samples from the first of two distributions: f_i ~ U(0.1, 0.9) in FedSPD (arXiv:2410.18862)."""

    fraction_min: float = Field(
        0.1, ge=0, le=1, description="smallest fraction of a peer's samples from the first distribution"
    )
    fraction_max: float = Field(
        0.9, ge=0, le=1, description="largest fraction of a peer's samples from the first distribution"
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.fraction_max < self.fraction_min:
            raise WrongOption("fraction_max", f"fraction_min ({self.fraction_min}) or more", self.fraction_max)
        return self


class Rotated(Fractions):
    """Half of the samples are rotated."""

    rotation: Literal[90, 180, 270] = Field(
        90, description="degrees by which half of the samples are rotated: 90, 180 or 270"
    )


class Steps(SplitOptions):
    """Of ``oddeven_steps``."""

    rotation: Degrees = Field(90, description="degrees by which half of the samples are rotated: 0, 90, 180 or 270")
    step: float = Field(
        0.1, ge=0, le=0.25, description="difference of the shares of even labels between two peers, at most 0.25"
    )
    test_step: float = Field(0.2, ge=0, le=0.25, description="the same in the test data; equal to step: as in training")


class Imbalance(Rotated):
    """Of ``imbalance``."""

    r: float = Field(5.0, ge=1, description="size of the largest peers divided by the size of the smallest")
    base: Literal["rotated_soft", "oddeven_rotated"] = Field(
        "rotated_soft", description="rotated_soft or oddeven_rotated"
    )


class Sized(SplitOptions):
    """Options with a smallest and a largest size of a peer."""

    samples_min: Whole
    samples_max: Whole

    @model_validator(mode="before")
    @classmethod
    def _raise_default(cls, given: Any) -> object:
        """Take the smallest size also as the largest one where the default is smaller than it."""
        least, largest = given.get("samples_min"), cls.model_fields["samples_max"].default
        if "samples_max" in given or not isinstance(least, int | float) or least <= largest:
            return given
        return {**given, "samples_max": least}

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.samples_max < self.samples_min:
            raise WrongOption("samples_max", f"samples_min ({self.samples_min}) or more", self.samples_max)
        return self


class Pattern(Sized):
    """A mixture of distributions at each peer."""

    pattern: str = Field("10:90", description="shares of two distributions in percent (any a:b), 'linear' or 'random'")
    samples_min: Whole = Field(100, ge=1, description="smallest size of a peer")
    samples_max: Whole = Field(200, ge=1, description="largest size of a peer")


class Cases(Pattern):
    """Of ``letters_case``."""

    clusters: Annotated[
        Literal[2, 4], Field(description="2: small and capital letters; 4: half of each also rotated")
    ] = 2


class Pair(Fractions):
    """Of ``pair_mixture``."""

    per_source: Whole = Field(25_000, ge=1, description="training samples taken from each data set")


class Dirichlet(SplitOptions):
    """Of ``dirichlet``."""

    alpha: float = Field(0.1, ge=1e-6, description="parameter of the Dirichlet distribution; smaller is more skewed")
    samples_min: Whole = Field(20, ge=1, description="smallest number of training samples of a peer")


class Patho(SplitOptions):
    """Of ``patho``."""

    classes_per_peer: Whole = Field(3, ge=1, description="number of classes of a peer")
    samples_min: Whole = Field(10, ge=0, description="smallest number of samples of each class of a peer")


class TwoClass(Sized):
    """Of ``two_class``."""

    samples_min: Whole = Field(400, ge=2, description="smallest size of a peer")
    samples_max: Whole = Field(5000, ge=2, description="largest size of a peer")
    train_share: float = Field(0.75, ge=0.1, le=0.95, description="share of a peer's samples for training")


class LabelFlip(SplitOptions):
    """Of ``label_flip``."""

    q: float = Field(0.2, ge=0, le=1, description="share of the peers whose labels are renamed")
    base: Literal["iid", "dirichlet", "patho"] = Field(
        "dirichlet", description="how samples are dealt: iid, dirichlet or patho"
    )
    alpha: Annotated[
        float,
        Field(ge=1e-6, description="as in dirichlet, with that base"),
        EffectiveWhen(lambda o: o.base == "dirichlet", lambda o: f"run.split_options.base is {o.base}"),
    ] = Dirichlet.model_fields["alpha"].default
    classes_per_peer: Annotated[
        Whole,
        Field(ge=1, description="as in patho, with that base"),
        EffectiveWhen(lambda o: o.base == "patho", lambda o: f"run.split_options.base is {o.base}"),
    ] = Patho.model_fields["classes_per_peer"].default
    samples_min: Annotated[
        Whole | None,
        Field(ge=0, description="as in the base: 20 in dirichlet, 10 in patho"),
        EffectiveWhen(lambda o: o.base != "iid", "run.split_options.base is iid"),
    ] = None

    def of_base(self, base: type[S]) -> S:
        """Return the options of the base, of its class."""
        mine = {name: value for name, value in self if name in base.model_fields and value is not None}
        return base.model_validate(mine)


class ByColumn(SplitOptions):
    """Of ``by_column``."""

    by: str | None = Field(None, description="column of the table; required; the column is not an input of the model")
