"""The options of the data sets (``task_options``): type, default, bounds and meaning of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator_free_bootstrap.options import EffectiveWhen, Whole
from peer.tasks.preprocessing import SAMPLES_MIN

Names = list[bool | int | float | str | None]  # compared with texts of the data


class DataOptions(BaseModel):
    """Of a data set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def complete(cls, given: Mapping[str, object]) -> dict[str, object]:
        """Return the given options, unchecked, and the defaults of the others."""
        defaults = {name: field.get_default(call_default_factory=True) for name, field in cls.model_fields.items()}
        return {**defaults, **given}


class LinearOptions(DataOptions):
    """Of ``linear``."""

    clusters: Whole = Field(2, ge=1, description="number of distributions")
    features: Whole = Field(10, ge=1, description="number of inputs")
    samples_per_cluster: Whole = Field(10_000, ge=1, description="training samples of each distribution")
    test_per_cluster: Whole = Field(2_000, ge=1, description="test samples of each distribution")
    seed: Whole = Field(0, ge=0, description="seed of the data")


class ImageOptions(DataOptions):
    """Of an image data set of torchvision."""

    normalize: bool | None = Field(None, description="standardize each channel (true for color images)")
    second: str | None = Field(None, description="a second image data set, for split pair_mixture")


class EmnistOptions(ImageOptions):
    """Of ``emnist``."""

    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = Field(
        "balanced", description="part of EMNIST, such as balanced or byclass"
    )


class FemnistOptions(DataOptions):
    """Of ``femnist``."""

    writers: Whole | None = Field(None, ge=1, description="largest number of writers (all)")


class FolderOptions(DataOptions):
    """Of ``image-folder``."""

    size: Whole = Field(32, ge=4, le=1024, description="side in pixels after scaling")
    channels: Literal[1, 3] = Field(3, description="1, grey, or 3, color")
    classes: Names | None = Field(None, description="list of class names (those of the folders, sorted)")


class TableOptions(DataOptions):
    """Of ``tabular``, and of frames in a `peer.Data`."""

    file: str | None = Field(None, description="name of the table in the data root; needed if the folder has several")
    target: str | None = Field(None, description="column to predict (the last)")
    kind: Literal["classification", "regression"] = Field("classification", description="classification or regression")
    classes: Annotated[
        Names | None,
        EffectiveWhen(lambda o: o.kind == "classification", "run.task_options.kind is regression"),
    ] = Field(None, description="list of labels (those in the file, sorted)")
    columns: Names | str | None = Field(
        None,
        description="list of the input columns, in the order of the model's inputs (all besides the target, as in the table)",
    )
    standardize: bool | Literal["shared"] = Field(
        True,
        description="scale each column by mean and standard deviation of the training rows; shared: of those of all peers, on "
        "which they agree before round 0",
    )
    samples_min: Annotated[
        Whole,
        EffectiveWhen(lambda o: o.standardize == "shared", "run.task_options.standardize is not shared"),
    ] = Field(
        SAMPLES_MIN,
        ge=2,
        description="training rows that each peer needs to take part in shared scaling, which tells its sums",
    )
    ignore: Annotated[
        Names,
        Field(description="list of columns that are no inputs"),
        EffectiveWhen(lambda o: o.columns is None, "run.task_options.columns lists the inputs"),
    ] = []
    categories: Annotated[
        Names | str,
        Field(
            description="texts of columns as column=text, such as [ward=heart, ward=lung]; each is an input (those in the file)"
        ),
    ] = []
    missing: Literal["refuse", "drop"] = Field(
        "refuse", description="rows without a value: refuse them, or drop them, which leaves them out"
    )
    header: bool | None = Field(None, description="whether the first row has the names of the columns (detected)")
    delimiter: str | None = Field(None, description="character between cells (detected)")
    decimal: Literal[".", ","] | None = Field(None, description="decimal mark, . or , (detected)")
    encoding: str | None = Field(None, description="of the text, such as utf-8 or cp1252 (detected)")
