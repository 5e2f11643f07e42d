"""What every section of a config is made of: a strict, frozen model, and how an optional section is written."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, PlainSerializer, model_validator


class Section(BaseModel):
    """A part of a config. An unknown key and a number that is not finite are errors, and a section that was read does
    not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _off_is_a_word(cls, data: Any) -> Any:
        """YAML reads `off` without quotes as false; where "off" is one of a key's values, it is meant."""
        if not isinstance(data, dict):
            return data
        words = {name for name, field in cls.model_fields.items() if "off" in get_args(field.annotation)}
        return {name: "off" if value is False and name in words else value for name, value in data.items()}


def _as_given(section: Section | None) -> dict[str, Any]:
    return {} if section is None else section.model_dump(mode="json", exclude_unset=True)


AsGiven = PlainSerializer(_as_given)
"""Writes a section with only the keys that the file gives.

A run folder's config and the digests of stages hold these sections in this form: a key that gets a new default here
changes neither.
"""
