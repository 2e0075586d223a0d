"""Pages with charts and tables about models, each a single HTML file that needs no network.

>>> import numpy as np, weightmap as wm
>>> from weightmap.report import write_report
>>> wm.save("model.safetensors", {"layer.0.w": np.eye(64, dtype=np.float32)})
>>> write_report("model.html", "model.safetensors")
True

Needs the package vl-convert-python, which the extra ``[report]`` names.
"""

from __future__ import annotations

from weightmap.report.writing import write_report

__all__ = ["write_report"]
