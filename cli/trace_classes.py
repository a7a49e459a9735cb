"""What a kernel is for, by its name: a table of regular expressions of which the first that matches decides.

The names are those of torch, cuBLAS (nvjet), CUTLASS, DeepGEMM, Marlin, FlashInfer, FlashAttention, FlashMLA, TensorRT
LLM, vLLM, SGLang, NCCL and Triton as their traces show them. --class puts lines of one's own in front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuhost_cli.trace_model import GRAPH, MEMCPY, MEMSET, TraceError

TITLES = {
    "gemm_fp4": "GEMM FP4",
    "gemm_fp8": "GEMM FP8",
    "gemm_int8": "GEMM INT8",
    "gemm_w4": "GEMM 4-bit weights",
    "gemm_bf16": "GEMM BF16",
    "gemm_fp16": "GEMM FP16",
    "gemm_fp32": "GEMM FP32, TF32",
    "gemm": "GEMM, precision not in its name",
    "attention": "attention, KV write",
    "collective": "all-reduce, collectives",
    "cast": "cast, copy on the GPU",
    "quantise": "quantisation",
    "norm": "norm, activation, elementwise",
    "moe": "routing, MoE permutation",
    "sampling": "sampling",
    "memcpy": "memcpy, host and peers",
    "memset": "memset",
    "graph": "CUDA graph, kernels not traced",
    "other": "other",
}
"""The classes, in the order of the report."""

QUANTISED_GEMMS = ("gemm_fp4", "gemm_fp8", "gemm_int8")
"""GEMMs whose input must be quantised first."""

KERNELS: tuple[tuple[str, str], ...] = (
    (
        "collective",
        r"nccl(dev)?kernel|nccl_symk|rccl|all_?reduce|cross_device_reduce|multimem|mscclpp|nvshmem|deep_ep::",
    ),
    ("collective", r"one_?shot_|two_?shot_|quick_?reduce|userbuffers|reduce_?scatter|all_?gather|all_?to_?all"),
    # Before attention: a KV cache that is cast has both words.
    (
        "cast",
        r"convert_fp8|dequant|up_?convert|concat_and_cast|(kv|cache)\w*_(cast|convert)|(cast|convert)_\w*(kv|cache)",
    ),
    ("attention", r"attention|attn|fmha|flash_|flash::|flashmla|sdpa|paged_?kv|mqa_logits|(?<![a-z])mla(?![a-z])"),
    ("attention", r"mlapaged|batch(decode|prefill|mla)|merge_?states|_fwd_(grouped_)?kernel_stage"),
    ("attention", r"reshape_and_cache|(store|set|write|append)_\w*(kv|cache)|kv_?buffer|kv_?indices|mlarope"),
    ("attention", r"(pod|with)\w*kvcache|^_fwd_kernel$|^reduce_segments$"),
    # The indexer of a sparse attention chooses tokens of the context, in each layer; that is no sampling.
    ("attention", r"indexer|top_?k_?per_?row|topk_transform|persistent_topk|clean_logits|req_index_to_global"),
    # TensorRT LLM keeps what surrounds its expert GEMMs in a name space called cutlass_kernels, and moe::dev has
    # CUTLASS's types in its templates.
    (
        "moe",
        r"expandinputrows|finalizemoe|expertprefixsum|computestrides|expertmaps|moe::dev::|moe_fused_gate|"
        r"moe_(align|sum|sort|permute|scan)|topk_?gating|compute_src2dst|kernel_ep_(scatter|gather)",
    ),
    ("gemm_w4", r"marlin|machete|awq_gemm|gptq|w4a16|int4.*gemm|(gemm|bmm).*(int4b_t|mxint4)"),
    # A GEMM that has the activation in its epilogue, or scales of a quantisation, has their words in its name.
    ("gemm", r"^bmm_|matmul_ogs|gemm::kernel::"),
    # Before GEMM: a norm or an activation that quantises on its way is one kernel, and none beside the GEMM.
    ("norm", r"(rms|layer|group|qk)_?norm|act_and_mul|silu|gelu|swiglu|rotary|(?<![a-z])rope"),
    ("quantise", r"quant|per_token_group|per_token_cast|cvt_\w*fp4|cast_to_fp[48]|scale_to_fp8|mxfp8_convert"),
    ("quantise", r"absmax|segmented_max_reduction|transpose_fp32|fp32_into_ue8m0"),
    (
        "gemm",
        r"(?<!fb)gemm|gemv|nvjet|matmul|cublas|xmma|cutlass|splitk|fused_moe_kernel|grouped_mm|bmm_|scaled_mm|cijk_",
    ),
    ("gemm", r"wgmma|(?<![a-z])mma_|w8a8|dot_kernel|triton_(tem|mm)|ck::.*gridwise"),
    ("moe", r"moe|expert|^(?!triton_(poi|red|per)_).*permut|routing|router|grouped_topk|topk_softmax|count_and_sort"),
    ("sampling", r"sampl|arg_?max|multinomial|top_?[kp](?![a-z]*gating)|topk|radix_?sort|bitonic_?sort|soft_?max"),
    ("sampling", r"penalt|gumbel|min_p_|exponential|distribution_|devicescan|cumsum|scan_outer_dim|scan_innermost_dim"),
    # Inductor names a kernel after all that is fused into it, with views, which move nothing.
    (
        "cast",
        r"triton_\w+_fused_+((to_copy|clone|copy|cat|stack|view|reshape|slice|select|split|with_sizes|unsqueeze|squeeze|"
        r"expand|permute|transpose|unbind|t)(?=_|$)|_)+\d*$",
    ),
    ("norm", r"triton_(poi|red|per)_"),
    (
        "cast",
        r"copy_kernel|catarray|nchwto|nhwcto|(?<!no)(?<!with)(?<![a-z])cast(?![a-z])|_cast_|convert_|transpose|memcpy|"
        r"_copy_page|copy_device_to_device|copyblock|fillempty_copy",
    ),
    ("norm", r"at::native|elementwise|reduce_kernel|gather|scatter|index|embedding|norm|cub::"),
)
"""Class and regular expression, without regard to case. The order is the meaning."""

PRECISIONS: tuple[tuple[str, str], ...] = (
    ("gemm_fp4", r"e2m1|fp4|mxf4|nvf4|nvjet(_sm\d+)?_oo"),
    ("gemm_fp8", r"e4m3|e5m2|fp8|float8|f8f8|w8a8_(triton_)?block|nvjet(_sm\d+)?_qq"),
    ("gemm_int8", r"int8|s8s8|_s8_|i8816|imma|igemm"),
    ("gemm_bf16", r"bf16|bfloat16|nvjet(_sm\d+)?_ts"),
    ("gemm_fp16", r"fp16|half|h884|h1688|hgemm|f16|nvjet(_sm\d+)?_hs"),
    ("gemm_fp32", r"sgemm|tf32|s1688|float|f32f32|nvjet(_sm\d+)?_ss"),
)
"""What a GEMM reads, by the narrowest type in its name: the result's type is there too, and it is wider.

nvjet has it in letters: t bfloat16, h half, q FP8, o FP4, s single (seen beside torch's ``_scaled_mm``)."""


class Classes:
    """The table, with lines of one's own in front."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        self._rows = [(name, re.compile(text, re.IGNORECASE)) for name, text in (*map(_own, own), *KERNELS)]
        self._precisions = [(name, re.compile(text, re.IGNORECASE)) for name, text in PRECISIONS]

    def of(self, name: str, kind: int) -> str:
        """The class of one kernel, copy or fill."""
        if kind == MEMCPY:  # torch copies a tensor of the same type and layout by one of these, without a kernel
            return "cast" if "DtoD" in name else "memcpy"
        if kind == MEMSET:
            return "memset"
        if kind == GRAPH:
            return "graph"
        found = next((key for key, pattern in self._rows if pattern.search(name)), "other")
        if found != "gemm":
            return found
        return next((key for key, pattern in self._precisions if pattern.search(name)), found)


def _own(text: str) -> tuple[str, str]:
    """``cast=my_kernel_.*``"""
    name, equals, pattern = text.partition("=")
    if not equals or name not in TITLES:
        raise TraceError(f"--class {text}: expected CLASS=REGEX with one of {', '.join(TITLES)}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise TraceError(f"--class {text}: no regular expression: {error}") from error
    return name, pattern
