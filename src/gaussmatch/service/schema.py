"""What the service answers, typed: the source of the OpenAPI description."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Gallery = Literal["images", "captions"]
Level = Literal["vague", "ordinary", "specific"]


class Place(BaseModel):
    """A Gaussian on the map: its mean, and an ellipse one standard deviation wide."""

    x: float
    y: float
    a: float | None = Field(description="Half of the long axis; null for point models.")
    b: float | None = Field(description="Half of the short axis.")
    angle: float | None = Field(description="Of the long axis against x, in radians.")


class Query(BaseModel):
    """What was asked, and how vague it is."""

    kind: Literal["text", "image", "item"]
    uncertainty: float | None = Field(description="log det Σ; null for point models.")
    percentile: float | None = Field(
        description="Share (0–100) of the model's training items of this kind that are surer."
    )
    level: Level | None = Field(description="vague from the 75th percentile, specific to the 25th.")
    phrase: str | None = Field(examples=["vague: more general than 93 % of captions"])
    unknown_words: list[str] = Field(description="Words that the model has never seen.")
    notes: list[str] = Field(description="What to know before trusting the numbers.")
    place: Place | None = Field(None, description="On the map, if asked for.")


class Hit(BaseModel):
    """One result."""

    id: str
    score: float = Field(description="Of the model's similarity; higher is better.")
    probability: float | None = Field(description="That it is a match; null if never calibrated.")
    uncertainty: float | None
    percentile: float | None
    text: str | None = Field(description="The caption, if it is one.")
    thumbnail: str | None = Field(description="Its address, relative to the root of the service.")
    metadata: dict[str, Any]
    place: Place | None = Field(None, description="On the map, if asked for.")


class Answer(BaseModel):
    """The results of a search, best first."""

    gallery: Gallery
    query: Query
    hits: list[Hit]


class Item(BaseModel):
    """An item of the index."""

    id: str
    gallery: Gallery
    uncertainty: float | None
    percentile: float | None
    text: str | None
    thumbnail: str | None
    metadata: dict[str, Any]


class Items(BaseModel):
    items: list[Item]
    total: int = Field(description="Pictures in the index.")


class Suggestion(BaseModel):
    """A caption that says what was asked more precisely."""

    text: str
    percentile: float | None


class Suggestions(BaseModel):
    suggestions: list[Suggestion]


class Texts(BaseModel):
    """Captions to embed."""

    texts: list[str] = Field(min_length=1, examples=[["a dog", "two dogs in the snow"]])


class Embedding(BaseModel):
    """A Gaussian."""

    mean: list[float]
    log_variance: list[float] | None = Field(
        description="ln σ² by dimension, one number for a sphere, null for point models."
    )


class Embeddings(BaseModel):
    dimension: int
    embeddings: list[Embedding]


class Uncertainty(BaseModel):
    """How vague something is."""

    uncertainty: float | None
    percentile: float | None
    level: Level | None
    phrase: str | None


class MapItem(Item, Place):
    """A picture on the map."""


class Map(BaseModel):
    """Some of the pictures on the two principal axes of the means."""

    items: list[MapItem]
    total: int = Field(description="Pictures in the index; a map shows a part of many.")
    explained: float = Field(description="Share of the variance of the means that is shown.")


class Limits(BaseModel):
    max_body: int
    max_pixels: int
    max_text: int
    max_texts: int
    max_results: int


class About(BaseModel):
    """What is served here."""

    version: str
    model: str
    similarity: str
    dimension: int
    probabilistic: bool
    images: int
    captions: int
    examples: list[str] = Field(description="Captions to try, from vague to specific.")
    limits: Limits


class Error(BaseModel):
    code: str
    message: str = Field(description="What is wrong and what to do.")


class Refused(BaseModel):
    error: Error
