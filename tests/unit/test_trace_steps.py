"""Classes, steps and shares, on synthetic traces whose truth is counted by their writer."""

from __future__ import annotations

import re

import pytest
from fake_trace import ALL_REDUCE, BASE_NS, GEMM, NORM, Plan, Writer, frame, step, text, write
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuhost_cli import trace_torch
from gpuhost_cli.trace_classes import TITLES, Classes
from gpuhost_cli.trace_marks import NONE_TOLD
from gpuhost_cli.trace_model import GRAPH, KERNEL, MEMCPY, MEMSET, Gpu, Trace, TraceError
from gpuhost_cli.trace_shares import figures
from gpuhost_cli.trace_steps import Steps, Window, find, resolve_graphs


def read(path, told=None, name=None):
    trace = trace_torch.read(path, name or NONE_TOLD)
    resolve_graphs(trace)
    order = trace.order(0)
    steps = find(trace, order, 0, told, name)
    return steps, figures(trace, 0, order, steps, Classes(), 100)


def written(path, body):
    path.write_text(body)
    return path


NAMES = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::float8_copy_kernel_cuda(": "cast",
    "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<CUDAFunctor_add<float> >": "norm",
    "void at::native::unrolled_elementwise_kernel<CUDAFunctor_add, LoadWithCast<2>, StoreWithCast<1> >": "norm",
    "triton_poi_fused__to_copy_0": "cast",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3": "norm",
    "convert_fp8_kv_cache_kernel": "cast",
    "nvjet_tst_64x8_64x16_4x1_v_bz_TNT": "gemm_bf16",
    "nvjet_qqtst_128x128_128x6_2x1_2cta_v_bz_TNT": "gemm_fp8",
    "nvjet_hsh_128x64": "gemm_fp16",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x128x128_cublas": "gemm_fp8",
    "void cutlass::device_kernel<gemm::kernel::GemmUniversal<float_e2m1_t, float_ue4m3_t, bfloat16_t>>": "gemm_fp4",
    "bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s6_et64x8": "gemm_fp4",
    "deep_gemm::sm90_fp8_gemm_1d2d_impl<7168>": "gemm_fp8",
    "void marlin::Marlin<__nv_bfloat16, 256>": "gemm_w4",
    "ampere_sgemm_128x64_nn": "gemm_fp32",
    "sm80_xmma_gemm_s8s8_s32_tn": "gemm_int8",
    "fused_moe_kernel": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>": "gemm_bf16",
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<e4m3>>>": "attention",
    "fmhaSm100aKernel_QkvE4m3OBfloat16HQk576HV512": "attention",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>": "attention",
    "flash_mla::sm90::fwd_splitkv_mla_kernel": "attention",
    "_fwd_grouped_kernel_stage1": "attention",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>": "attention",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "collective",
    "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>": "collective",
    "allreduce_fusion_kernel_oneshot_lamport": "collective",
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>": "norm",
    "void vllm::act_and_mul_kernel<c10::BFloat16, silu>": "norm",
    "cudnn::normlayer_xx": "norm",
    "void sglang::per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn>": "quantise",
    "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>": "quantise",
    "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel": "moe",
    "void vllm::moe::topkGatingSoftmax<8, 256, 4, 16>": "moe",
    "moe_align_block_size_kernel": "moe",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float> >": "sampling",
    "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>": "sampling",
    "fbgemm_gpu::jagged_2d_to_dense_kernel": "other",
    "my_own_kernel": "other",
    # A GEMM with the activation in its epilogue.
    "bmm_E4m3_E4m3E4m3_Fp32_t128x8x256_s6_m128x8x32_rM_TN_transOut_bN_tma_clmp_swiGlu_dynB_sm100f": "gemm_fp8",
    "bmm_Bfloat16_MxInt4Bfloat16_castBfloat16_Fp32_t128x32x256u2_rM_BN_transOut_clmp_swiGlu_dynB_sm100f": "gemm_w4",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu": "gemm_fp4",
    "cutlass::Kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::bfloat16_t, epilogue::thread::SiLu>>": "gemm_bf16",
    "cutlass::Kernel<cutlass::gemm::kernel::GemmFpAIntB<half_t, uint4b_t, (cutlass::WeightOnlyQuantOp)1>>": "gemm_w4",
    "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::int4b_t, float_e4m3_t>>": "gemm_w4",
    "_w8a8_triton_block_scaled_mm": "gemm_fp8",
    # What only has a GEMM library's name in it.
    "void deep_gemm::transpose_fp32<512u, 64u, 56u>(float const*, float*, unsigned int)": "quantise",
    "void deep_gemm::transpose_and_pack_fp32_into_ue8m0<512u, 48u, 56u>": "quantise",
    "void deep_gemm::smxx_clean_logits<2048u>": "attention",
    "void moe_fused_gate_kernel<cutlass::bfloat16_t>": "moe",
    "void moe::dev::finalize::finalizeKernelVecLoad<KernelParams<cutlass::bfloat16_t>>": "moe",
    "void tensorrt_llm::kernels::cutlass_kernels::fusedBuildExpertMapsSortFirstTokenKernel<256, 4, 8>": "moe",
    "_fwd_kernel_ep_scatter_1": "moe",
    # A sparse attention's indexer: no sampling, no cast, no quantisation beside a GEMM.
    "void vllm::topKPerRowDecode<512, true>(float const*, int const*, int*)": "attention",
    "void vllm::indexer_k_quant_and_cache_kernel<__nv_bfloat16, unsigned char>": "attention",
    "_convert_req_index_to_global_index_kernel": "attention",
    "_fwd_kernel": "attention",
    "reduce_segments": "attention",
    "void flashinfer::SinglePrefillWithKVCacheKernel<...>": "attention",
    "void flashinfer::PODWithKVCacheTensorKernel<>": "attention",
    "void tensorrt_llm::kernels::applyMLARopeAndAssignQKVKernelGeneration<__nv_bfloat16>": "attention",
    "void vllm::segmented_max_reduction<c10::BFloat16, c10::Float8_e4m3fn>": "quantise",
    "void per_tensor_absmax_kernel<__nv_bfloat16>": "quantise",
    # Inductor's names have views in them.
    "triton_poi_fused__to_copy_view_3": "cast",
    "triton_poi_fused_clone_permute_3": "cast",
    "triton_poi_fused_add_cat_mul_sub_transpose_2": "norm",
    "triton_poi_fused_add_permute_view_3": "norm",
    "triton_poi_fused_split_with_sizes_tanh_2": "norm",
    "triton_red_fused_argmax_0": "sampling",
}


@pytest.mark.parametrize(("name", "key"), NAMES.items())
def test_classes(name, key):
    assert Classes().of(name, KERNEL) == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Memcpy DtoD (Device -> Device)", "cast"),
        ("Memcpy HtoD (Pinned -> Device)", "memcpy"),
        ("Memcpy PtoP (Device -> Device)", "memcpy"),
    ],
)
def test_a_copy_within_a_gpu_is_one_whether_a_kernel_does_it_or_not(name, key):
    assert Classes().of(name, MEMCPY) == key


def test_every_class_has_a_title():
    used = {Classes().of(name, KERNEL) for name in NAMES} | {
        Classes().of("x", kind) for kind in (MEMCPY, MEMSET, GRAPH)
    }
    assert used == set(TITLES)


def test_a_class_of_ones_own_comes_first():
    assert Classes(["moe=nvjet_.*"]).of("nvjet_tst_1", KERNEL) == "moe"
    with pytest.raises(TraceError, match=r"--class moo=x: expected CLASS=REGEX with one of gemm_fp4, .*other"):
        Classes(["moo=x"])
    with pytest.raises(TraceError, match=r"--class moe=\(: no regular expression"):
        Classes(["moe=("])


@pytest.mark.parametrize(
    ("plan", "method", "certainty"),
    [
        (Plan(), "graph", "certain"),
        (Plan(numbered=False), "graph", "likely"),
        (Plan(numbered=False, calls=False), "graph", "likely"),
        (Plan(graph=False), "sequence", "likely"),
        (Plan(marks="ProfilerStep#{}"), "profiler", "certain"),
        (Plan(graph=False, marks="step[DECODE bs={}]"), "span", "certain"),
        (Plan(graph=False, marks="execute_context_0(0)_generation_{}(1)", steps=9), "span", "certain"),
        (Plan(graph=False, marks="execute_new_0_cached_{}", steps=9), "span", "certain"),
    ],
)
def test_the_same_steps_however_they_are_found(tmp_path, plan, method, certainty):
    steps, found = read(write(tmp_path, plan))
    assert (steps.method, steps.certainty) == (method, certainty)
    # The first of vLLM's spans generates nothing (generation_0), which is no decode step.
    skipped = 1 if plan.marks.startswith("execute") else 0
    assert steps.count == plan.steps - 1 - skipped
    assert steps.left_out[-1] == "the last one, whose end is not in the trace"
    for key, share in plan.truth().items():
        got = found.idle.percent if key == "idle" else found.wall(key)
        assert got == pytest.approx(share, abs=0.01), key
    assert found.launches.kernels == len(plan.kernels()) - 1
    assert found.launches.graphs == (1 if plan.graph else 0)
    assert found.launches.eager == (0 if plan.graph else len(plan.kernels()) - 1)


def test_told_steps_divide_the_whole(tmp_path):
    plan = Plan(steps=12)
    steps, found = read(write(tmp_path, plan), told=12)
    assert (steps.method, steps.certainty, steps.count) == ("told", "certain", 12)
    assert found.launches.kernels == len(plan.kernels()) - 1
    assert found.steps.mean_ms == pytest.approx(found.steps.median_ms)


def test_spans_of_ones_own(tmp_path):
    steps, _ = read(write(tmp_path, Plan(marks="token {}")), name=re.compile(r"^token \d"))
    assert (steps.method, steps.count) == ("span", 11)


def test_a_span_around_many_launches_of_one_graph_is_no_step(tmp_path):
    writer, plan, now = Writer(), Plan(steps=12), BASE_NS
    for number in range(plan.steps):
        if number % 4 == 0:
            writer.host("user_annotation", f"ProfilerStep#{number}", now - 60_000, 3_000_000)
        now = step(writer, plan, now, number)
    steps, _ = read(written(tmp_path / "t.json", frame(writer.events, plan)))
    assert (steps.method, steps.count) == ("graph", 11)


def test_a_prefill_between_is_left_out(tmp_path):
    writer, plan, now = Writer(), Plan(steps=10, graph=False, marks="step[DECODE bs={}]"), BASE_NS
    for number in range(plan.steps):
        now = step(writer, plan, now, number)
        if number == 4:
            writer.host("user_annotation", "step[EXTEND bs=1 toks=900]", now - 51_000, 30_000)
            writer.correlation += 1
            writer.host("cuda_runtime", "cudaLaunchKernel", now - 40_000, 4_000, writer.correlation)
            writer.kernel("prefill_gemm", now, 9_000_000, plan, 0)
            now += 9_100_000
    steps, found = read(written(tmp_path / "t.json", frame(writer.events, plan)))
    assert (steps.count, steps.left_out[0]) == (9, "1 that are no decode steps")
    assert found.steps.longest_ms < 2
    assert not [row for row in found.kernels if row.name == "prefill_gemm"]


def test_a_pause_between_requests_is_no_step(tmp_path):
    writer, plan, now = Writer(), Plan(steps=10), BASE_NS
    for number in range(plan.steps):
        now = step(writer, plan, now, number) + (3_000_000_000 if number == 4 else 0)
    steps, found = read(written(tmp_path / "t.json", frame(writer.events, plan)))
    assert "1 that took more than 10 times the median (a pause, or a prefill)" in steps.left_out
    assert found.idle.percent == pytest.approx(plan.truth()["idle"], abs=0.01)


def test_another_batch_size_is_left_out(tmp_path):
    writer, now = Writer(), BASE_NS
    for number in range(10):
        now = step(writer, Plan(layers=5 if number == 7 else 8), now, number)
    steps, _ = read(written(tmp_path / "t.json", frame(writer.events, Plan())))
    assert "1 with other kernels (a prefill, or another batch size)" in steps.left_out


def test_without_a_rhythm_the_figures_are_of_the_whole(tmp_path):
    writer, plan, now = Writer(), Plan(), BASE_NS
    for number in range(9):
        writer.kernel(f"kernel_{number}", now, 1000, plan, 0)
        now += 2000
    steps, found = read(written(tmp_path / "t.json", frame(writer.events, plan)))
    assert (steps.method, steps.certainty, steps.count) == ("none", "none", 1)
    assert "--steps N" in steps.detail
    assert found.busy_percent == pytest.approx(100 * 9 / 17)


def test_what_overlaps_counts_once_in_the_wall_and_twice_in_gpu_time(tmp_path):
    """An all-reduce on its own stream under a GEMM, a norm alone, and a gap: 10 us of wall."""
    writer, plan, now = Writer(), Plan(), BASE_NS
    for _ in range(6):
        writer.correlation += 1
        writer.kernel(GEMM, now, 6_000, plan, 0)
        writer.kernel(ALL_REDUCE, now + 2_000, 6_000, plan, 0, stream=8)
        writer.kernel(NORM, now + 8_000, 1_000, plan, 0)
        now += 10_000
    _, found = read(written(tmp_path / "t.json", frame(writer.events, plan)), told=6)
    walls = {row.key: row.wall_ms * 1000 for row in found.classes}
    # 2 us alone, 4 us shared by two; 4 us shared, 2 us alone
    assert walls == pytest.approx({"gemm_bf16": 4, "collective": 4, "norm": 1}, abs=1e-6)
    assert {row.key: row.gpu_ms * 1000 for row in found.classes} == pytest.approx(
        {"gemm_bf16": 6, "collective": 6, "norm": 1}
    )
    # The last of six gaps lies behind the trace's end.
    assert found.busy_percent == pytest.approx(100 * 54 / 59)
    assert found.overlap_percent == pytest.approx(100 * 24 / 59)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60), st.sampled_from("abcd")), min_size=1, max_size=40))
def test_walls_and_idle_are_the_step_whatever_overlaps(rows):
    """Against a count of every nanosecond."""
    trace = Trace("t", "synthetic", names=[GEMM, ALL_REDUCE, NORM, "x"], gpus=[Gpu("", 0)])
    for begin, length, name in rows:
        trace.ops.add(begin, begin + length, "abcd".index(name), 0, KERNEL, -1)
    order = trace.order(0)
    window = Window(0, len(order), trace.ops.begin[order[0]], 400)
    found = figures(trace, 0, order, Steps("told", "certain", "", (window,), 1), Classes(), 100)
    busy, walls = 0, dict.fromkeys(("gemm_bf16", "collective", "norm", "other"), 0.0)
    keys = dict(zip("abcd", walls, strict=True))
    for now in range(window.begin, 400):
        running = [name for begin, length, name in rows if begin <= now < begin + length]
        busy += bool(running)
        for name in running:
            walls[keys[name]] += 1 / len(running)
    assert found.busy_percent == pytest.approx(100 * busy / window.wall)
    for key, value in walls.items():
        assert found.wall(key) == pytest.approx(100 * value / window.wall), key
    assert sum(row.wall_percent for row in found.classes) + found.idle.percent == pytest.approx(100)


def test_what_runs_on_into_the_next_step_is_counted_there(tmp_path):
    """A copy on its own stream begins in one step and ends in the next."""
    writer, now = Writer(), BASE_NS
    plan = Plan(marks="step[DECODE bs={}]", host=50_000)
    for number in range(5):
        begin, now = now, step(writer, plan, now, number)
        writer.kernel(ALL_REDUCE, now - 40_000, 60_000, plan, 0, stream=9)
        assert begin < now
    _, found = read(written(tmp_path / "t.json", frame(writer.events, plan)))
    row = next(row for row in found.classes if row.key == "collective")
    # 40 us in the gap alone; then 20 us with the next step's first kernels, of which the first step has none.
    assert row.wall_ms * 1000 > 40 + 7
    assert sum(item.wall_percent for item in found.classes) + found.idle.percent == pytest.approx(100)


def test_text_is_what_is_written(tmp_path):
    assert write(tmp_path, Plan()).read_text() == text(Plan())
