"""From a quantization_config to the format of each matrix. Pure: who made the checkpoint decides how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuhost_cli.ceiling_fields import shortened
from gpuhost_cli.ceiling_formats import FORMATS, WHOLE, Format, fp8, integers, mxfp, nvfp4
from gpuhost_cli.ceiling_match import Entries
from gpuhost_cli.run import InputError

UNQUANTIZED = ("embedding", "router", "lm_head")
"""What engines keep in the checkpoint's own type: lookups and routing are no linear layers to them, and the head is one
only where the checkpoint says so."""


@dataclass(frozen=True)
class Rule:
    """A format, and the modules that have it (None: all that are not named elsewhere)."""

    format: Format
    entries: Entries | None = None


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint's weights are stored. ``kv``: what it says of the KV cache. ``notes``: what was not understood,
    or is not counted."""

    method: str
    base: Format
    rules: tuple[Rule, ...] = ()
    ignored: Entries = field(default_factory=lambda: Entries(()))
    head: bool = False
    kv: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def by_expert(self) -> bool:
        """Whether experts of one layer may differ."""
        return self.ignored.by_expert or any(rule.entries and rule.entries.by_expert for rule in self.rules)

    def format_of(self, component: str, module: str) -> tuple[Format, list[str]]:
        """A module's format, and the entries of lists that decided it."""
        covering = self.ignored.covering(module)
        if covering or (component in UNQUANTIZED and not (component == "lm_head" and self.head)):
            return self.base, covering
        if module.endswith("indexer.weights_proj"):
            return self.base, []  # a few rows that every engine keeps in the checkpoint's own type
        for rule in self.rules:
            named = [] if rule.entries is None else rule.entries.covering(module)
            if rule.entries is None or named:
                return rule.format, named
        return self.base, []


def scheme_of(config: Mapping[str, Any] | None, dtype: str) -> Scheme:
    """How the weights are stored. Raises InputError for a method or a number format that is not understood."""
    base = FORMATS[dtype]
    if config is None:
        return Scheme("none", base)
    if not isinstance(config, Mapping):
        raise _unknown(f"{shortened(config)!r}", "an object is expected")
    inner = config.get("quantization")  # hf_quant_config.json wraps it, with who made it beside
    producer = config.get("producer")
    read = dict(inner) if isinstance(inner, dict) else {k: v for k, v in config.items() if k != "producer"}
    made_by = str(producer.get("name", "")) if isinstance(producer, dict) else ""
    method = str(read.get("quant_method") or made_by or ("modelopt" if "quant_algo" in read else "")).lower()
    if "quant_algo" in read and method not in ("compressed-tensors",):
        method = "modelopt"
    reader = READERS.get(method)
    if reader is None:
        raise _unknown(f"quant_method {method or '(none)'}", f"known are {', '.join(sorted(READERS))}")
    try:
        return reader(read, base)
    except (TypeError, ValueError) as error:
        raise InputError(f"quantization_config: {error}") from error


def _object(value: Any, name: str) -> Mapping[str, Any]:
    """An object within it; an empty one where there is none."""
    if value is not None and not isinstance(value, Mapping):
        raise _unknown(f"{name} {shortened(value)}", "an object is expected")
    return value or {}


def _unknown(what: str, known: str) -> InputError:
    return InputError(
        f"quantization_config: {what} is not understood: {known}; --weights FORMAT sums it up as one format"
    )


HARMLESS = {
    "quant_method", "activation_scheme", "fmt", "scale_fmt", "quantization_status", "global_compression_ratio",
    "version", "backend", "do_fuse", "fuse_max_seq_len", "exllama_config", "damp_percent", "static_groups", "desc_act",
    "true_sequential", "use_exllama", "checkpoint_format", "meta", "dataset", "tokenizer", "format", "pack_dtype",
    "quantizer", "provider", "autoround_version", "iters", "nsamples", "seqlen", "data_type", "kv_cache_quant_algo",
    "kv_cache_scheme", "is_marlin_format", "model_name_or_path", "model_file_base_name",
}  # fmt: skip
"""Keys that change no weight's bytes (GPTQ's order of columns, desc_act, is 4 B for each input, not counted)."""


def _rest(read: Mapping[str, Any], *used: str) -> tuple[str, ...]:
    left = {
        key: value for key, value in read.items() if key not in HARMLESS | set(used) and value not in (None, False, {})
    }
    return tuple(f"quantization_config: not understood: {key} = {shortened(value)}" for key, value in left.items())


def _names(read: Mapping[str, Any], *keys: str) -> Entries:
    for key in keys:
        if read.get(key) is not None and not isinstance(read[key], list):
            raise _unknown(f"{key} {shortened(read[key])}", "a list of names is expected")
    return Entries(tuple(str(entry) for key in keys for entry in read.get(key) or ()))


def _kv(read: Mapping[str, Any]) -> str | None:
    """The KV cache's format, where the checkpoint asks for one."""
    said = read.get("kv_cache_quant_algo") or read.get("kv_cache_scheme")
    if not said:
        return None
    if said == "FP8" or (isinstance(said, dict) and said.get("num_bits") == 8 and said.get("type") == "float"):
        return "fp8"
    raise _unknown(f"KV cache format {shortened(said)}", "known is FP8")


def _fp8(read: Mapping[str, Any], base: Format) -> Scheme:
    """DeepSeek's blocks, or one scale a matrix; fbgemm: one a row."""
    block = read.get("weight_block_size")
    group = (WHOLE, WHOLE) if block is None else _block(block, "weight_block_size")
    if read.get("quant_method") == "fbgemm_fp8":
        group = (1, WHOLE)
    lists = ("modules_to_not_convert", "ignored_layers")
    notes = _rest(read, "weight_block_size", "activation_scale_ub", *lists)
    return Scheme("FP8", base, (Rule(fp8(group)),), _names(read, *lists), kv=_kv(read), notes=notes)


def _block(sizes: Any, name: str) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    if not (isinstance(sizes, list) and len(sizes) == 2 and all(type(each) is int and each > 0 for each in sizes)):
        raise _unknown(f"{name} {shortened(sizes)}", "two sizes are expected")
    return sizes[0], sizes[1]


def _packed(read: Mapping[str, Any], base: Format) -> Scheme:
    """AWQ and GPTQ: whole numbers in groups along the inputs."""
    awq = read.get("quant_method") == "awq"
    bits, group = int(read.get("bits") or read.get("w_bit") or 0), read.get("group_size", read.get("q_group_size", 128))
    if bits not in (3, 4, 8) or type(group) is not int or not (group == -1 or group > 0):
        raise _unknown(f"{bits or 'no'} bits in groups of {shortened(group)}", "3, 4 or 8 bits")
    if read.get("dynamic"):
        raise _unknown("dynamic (other bits for some modules)", "the same for all")
    zero = bool(read.get("zero_point", True)) if awq else not read.get("sym", False)
    used = ("bits", "w_bit", "group_size", "q_group_size", "zero_point", "sym", "modules_to_not_convert", "lm_head")
    return Scheme(
        "AWQ" if awq else "GPTQ",
        base,
        (Rule(integers(bits, group, zero_point=zero)),),
        _names(read, "modules_to_not_convert"),
        head=bool(read.get("lm_head")),
        kv=_kv(read),
        notes=_rest(read, *used),
    )


def _algorithm(name: str, group: int) -> Format:
    """modelopt's names."""
    wide = name.upper()
    if wide in ("NVFP4", "NVFP4_AWQ", "W4A4_NVFP4"):
        return nvfp4()
    made: dict[str, Format] = {
        "W4A16_NVFP4": nvfp4(activations=False),
        "FP8": fp8(),
        "FP8_PER_CHANNEL_PER_TOKEN": fp8((1, WHOLE)),
        "FP8_PB_WO": fp8((128, 128)),
        "MXFP8": mxfp(8),
        "MXFP4": mxfp(4),
        "W4A16_AWQ": integers(4, group, zero_point=False),
        "W4A8_AWQ": integers(4, group, zero_point=False),
    }
    if wide not in made:
        raise _unknown(f"quant_algo {name}", f"known are NVFP4, MIXED_PRECISION, {', '.join(made)}")
    return made[wide]


def _modelopt(read: Mapping[str, Any], base: Format) -> Scheme:
    """One algorithm for all but a list; or MIXED_PRECISION, with one for each module that is named."""
    algorithm, group = str(read.get("quant_algo")), int(read.get("group_size") or 128)
    lists = ("exclude_modules", "ignore")
    notes = _rest(read, "quant_algo", "group_size", "config_groups", "quantized_layers", *lists)
    if algorithm.upper() == "MIXED_PRECISION":
        layers = read.get("quantized_layers")
        if not isinstance(layers, dict) or not layers:
            raise _unknown("MIXED_PRECISION without quantized_layers", "each module's own algorithm is needed")
        by_format: dict[Format, list[str]] = {}
        for module, each in layers.items():
            own = _object(each, module)
            made = _algorithm(str(own.get("quant_algo")), int(own.get("group_size") or group))
            by_format.setdefault(made, []).append(module)
        rules = tuple(Rule(made, Entries(tuple(modules))) for made, modules in by_format.items())
        return Scheme("modelopt mixed", base, rules, _names(read, *lists), head=True, kv=_kv(read), notes=notes)
    rule = Rule(_algorithm(algorithm, group))
    return Scheme(f"modelopt {algorithm}", base, (rule,), _names(read, *lists), kv=_kv(read), notes=notes)


def _weights(scheme: Mapping[str, Any], activations: bool) -> Format:
    """One group of compressed-tensors."""
    bits, kind, group = scheme.get("num_bits"), scheme.get("type", "int"), scheme.get("group_size")
    strategy, block = scheme.get("strategy"), scheme.get("block_structure")
    if kind == "float" and bits == 4:
        return mxfp(4, activations=activations) if group == 32 else nvfp4(activations=activations)
    if kind == "float" and bits == 8:
        if group == 32:
            return mxfp(8, activations=activations)
        if strategy == "block":
            return fp8(_block(block, "block_structure"), activations=activations)
        return fp8((1, WHOLE) if strategy == "channel" else (WHOLE, WHOLE), activations=activations)
    if kind == "int" and bits in (4, 8):
        size = int(group) if group else WHOLE
        return integers(int(bits), size, zero_point=scheme.get("symmetric") is False, activations=activations)
    raise _unknown(f"weights of {bits} bit {kind}", "4 and 8 bit, int and float")


def _compressed(read: Mapping[str, Any], base: Format) -> Scheme:
    """compressed-tensors: groups of modules with a scheme each."""
    rules, notes, head = [], list(_rest(read, "config_groups", "ignore", "sparsity_config")), False
    sparsity = read.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") not in (None, "dense"):
        raise _unknown(f"sparsity_config {shortened(sparsity)}", "dense weights")
    for name, each in _object(read.get("config_groups"), "config_groups").items():
        group = _object(each, name)
        weights = group.get("weights")
        if not isinstance(weights, dict):
            notes.append(f"quantization_config: {name} has no weights: nothing is stored otherwise for it")
            continue
        made = _weights(weights, bool(group.get("input_activations")))
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        named = tuple(target for target in targets if target != "Linear")
        head = head or any("lm_head" in target for target in named)
        if named:
            rules.append(Rule(made, Entries(named)))
        if "Linear" in targets:
            rules.append(Rule(made))
    rules.sort(key=lambda rule: rule.entries is None)  # what is named goes before what holds for all
    if not rules:
        raise _unknown("config_groups without weights", "at least one group")
    return Scheme(
        "compressed-tensors", base, tuple(rules), _names(read, "ignore"), head=head, kv=_kv(read), notes=tuple(notes)
    )


READERS: dict[str, Callable[[Mapping[str, Any], Format], Scheme]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "awq": _packed,
    "gptq": _packed,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "compressed-tensors": _compressed,
}
