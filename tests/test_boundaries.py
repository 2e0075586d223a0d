"""Bounds, exactly: what is accepted at the bound and refused one beyond it, over all formats."""

from __future__ import annotations
