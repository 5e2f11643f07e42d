"""Liger's fused layers (Hsu et al. 2024, arXiv 2410.10989): RMSNorm, rotary positions and gated MLPs, a kernel each.

The head and its loss stay ours or TRL's, which compute it only where a token is learnt. The kernels are Triton's and
run on GPUs; no machine of ours has run them yet (`make gpu-check` compares loss and speed where they are installed).
"""

from __future__ import annotations

from typing import Any

import torch

from ratchet.errors import UserError
from training.gpu_packages import LIGER

FUSED = {"rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False, "fused_linear_cross_entropy": False}


def fuse_layers(model: Any) -> None:
    """Replace layers of a PeftModel in place; later models of its architecture have them too, in this process.

    UserError without a GPU or the package, or for another architecture.
    """
    LIGER.check_gpu(torch.cuda.is_available())
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        raise LIGER.missing(f"cannot import liger_kernel ({error})") from error
    from transformers.integrations.liger import apply_liger_kernel

    kind = model.get_base_model().config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserError(f"training.liger: Liger has no layers for {kind} models; {LIGER.otherwise}")
    apply_liger_kernel(model, FUSED)
