"""The check itself, workers and all, on GPUs in Python that hang, lie, stumble, and die."""

from __future__ import annotations

import time

import pytest
from p2p_fake import Faults, make_small, run, stand, tools

from gpu_checks.p2p import steps as p2p_work
from gpu_checks.p2p.links import Link
from gpu_checks.p2p.steps import Tools
from gpu_checks.registry import Options


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    make_small(monkeypatch)


def test_healthy_gpus_need_one_worker():
    seen = run(3)
    whole = seen["p2p"]
    assert (whole.status, whole.value, whole.unit) == ("measured", 6, "pairs")
    assert (whole.detail["workers"], whole.detail["lost"]) == (1, [])
    assert {each.status for each in seen.values()} == {"measured"}
    names = {name.rpartition(".")[0] for name in seen if name.endswith("2-1")}
    assert names == {f"p2p.{what}" for what in ("access", "ce", "ce_both", "sm_write", "sm_read", "latency")}
    assert sum(name.startswith("p2p.together.") for name in seen) == 8
    assert seen["p2p.ce.2-1"].value == pytest.approx(50)
    assert seen["p2p.latency.2-1"].value == pytest.approx(0.8)
    assert whole.detail["ce_gb_s"][2][1] == pytest.approx(50)
    assert whole.detail["ce_gb_s"][1][1] is None
    assert "ce_gb_s" in whole.detail["table"]
    assert whole.detail["gpus"]["before"] == whole.detail["gpus"]["after"]


def test_clocks_bytes_and_samples_are_in_the_record():
    seen = run()
    write, read = seen["p2p.sm_write.0-1"], seen["p2p.sm_read.0-1"]
    assert (write.clock, read.clock) == ("CUDA events on GPU 0", "CUDA events on GPU 1")
    assert write.samples.n == write.detail["copies"] == 16
    assert write.detail["copy_bytes"] * write.detail["buffers"] == write.detail["checked_bytes"] == 2 << 20
    assert seen["p2p"].detail["buffers_shrunk"] is True


CASE = {
    # pair: (GB/s, class, word), as in the case's table
    (0, 1): (52.0, "same_switch", "PIX"),
    (0, 2): (50.0, "host_bridge", "PHB"),
    (0, 3): (55.0, "host_bridge", "PHB"),
    (0, 4): (37.0, "across_sockets", "SYS"),
    (0, 5): (4.0, "same_switch", "PIX"),
    (0, 6): (20.0, "host_bridge", "PHB"),
    (1, 0): (51.0, "same_switch", "PIX"),
    (3, 0): (54.0, "host_bridge", "PHB"),
}


@pytest.fixture
def case_links(monkeypatch):
    """Links of generation 5 and 16 lanes, of the classes in the case."""

    def read(session, addresses, access):
        found = {}
        for i in range(len(addresses)):
            for j in range(len(addresses)):
                _, kind, word = CASE.get((i, j), (0, "same_node", "NODE"))
                kind = kind if access[i][j] else "staged"
                found[i, j] = Link(kind, word, generation=5, width=16)
        return found

    monkeypatch.setattr(p2p_work, "read_links", read)


def test_case_cuda_02(case_links):
    """tests/cases/cuda-02-p2p-says-ok-moves-nothing.md: what the verdicts in its last column follow from."""
    faults = Faults(
        hang={(0, 2)},
        zeros={(0, 3)},
        flipped={(3, 0)},
        no_access={(0, 6), (6, 0)},
        slow={pair: row[0] for pair, row in CASE.items()},
    )
    made = tools(7, faults, step_s=3.0)  # to compare 2 MiB of wrong words in Python takes most of a second
    made = Tools(**{**vars(made), "pairs": lambda count, quick: list(CASE)})
    seen = run(made=made)
    got = {
        pair: (*stand(seen, f"p2p.ce.{pair[0]}-{pair[1]}"), seen[f"p2p.ce.{pair[0]}-{pair[1]}"].value) for pair in CASE
    }
    assert got == {
        (0, 1): ("measured", None, 52.0),
        (0, 2): ("error", "p2p.hang", None),
        (0, 3): ("error", "p2p.wrong_data", 55.0),
        (0, 4): ("measured", None, 37.0),
        (0, 5): ("measured", None, 4.0),
        (0, 6): ("measured", None, 20.0),
        (1, 0): ("measured", None, 51.0),
        (3, 0): ("error", "p2p.wrong_data", 54.0),
    }
    # Slow, and slow for its class: the same expectation, another class, another share.
    details = {pair: seen[f"p2p.ce.{pair[0]}-{pair[1]}"].detail for pair in CASE}
    assert [details[pair]["share"] for pair in [(0, 1), (0, 4), (0, 5)]] == [0.9026, 0.6422, 0.0694]
    assert [details[pair]["link"]["kind"] for pair in [(0, 1), (0, 4)]] == ["same_switch", "across_sockets"]
    assert "all of them zero" in details[0, 3]["message"]
    assert details[3, 0]["data"]["first_copy"]["words"] == 1
    assert "55 GB/s" in details[0, 3]["message"]
    # Not P2P: measured, marked, and a measurement of its own says so.
    assert (details[0, 6]["peer_access"], details[0, 6]["link"]["kind"]) == (False, "staged")
    assert details[0, 6]["expected_gb_s"] is None
    assert stand(seen, "p2p.access.0-6") == ("not_measured", "p2p.no_peer_access")
    assert stand(seen, "p2p.sm_write.0-6") == ("not_measured", "p2p.no_peer_access")
    # A hang: said with pair and suspects; the rest of the host was measured.
    assert "GPU 0 -> 2" in details[0, 2]["message"]
    assert "ACS" in details[0, 2]["message"]
    assert "IOMMU" in details[0, 2]["message"]
    assert "iommu_type" in details[0, 2]["suspects"]
    whole = seen["p2p"]
    assert (whole.status, whole.cause, whole.value) == ("error", "p2p.wrong_data", 5)
    assert whole.detail["hang"] == ["ce.0-2"]
    assert whole.detail["workers"] == 2
    assert whole.detail["expected_pairs"] == 8


def test_the_direction_that_works_is_measured_though_the_other_hangs():
    seen = run(2, Faults(hang={(0, 1)}), step_s=1.0)
    assert stand(seen, "p2p.ce.0-1") == ("error", "p2p.hang")
    assert stand(seen, "p2p.ce.1-0") == ("measured", None)
    for name in ("p2p.sm_write.0-1", "p2p.ce_both.1-0", "p2p.latency.0-1", "p2p.together.all_pairs.ce"):
        assert stand(seen, name) == ("not_measured", "p2p.not_reached"), name
    assert "0-1" in seen["p2p.ce_both.1-0"].detail["message"]
    assert (seen["p2p"].value, seen["p2p"].cause) == (1, "p2p.hang")


def test_after_two_hung_pairs_nothing_more_is_tried():
    begin = time.monotonic()
    seen = run(3, Faults(hang={(0, 1), (0, 2), (1, 0)}), step_s=1.0)
    assert time.monotonic() - begin < 8
    hung = [name for name, each in seen.items() if each.cause == "p2p.hang" and name != "p2p"]
    assert hung == ["p2p.ce.0-1", "p2p.ce.0-2"]
    assert stand(seen, "p2p.ce.1-0") == ("not_measured", "p2p.not_reached")
    assert seen["p2p.ce.1-0"].detail["message"] == "2 workers were lost"
    assert seen["p2p"].detail["workers"] == 2


def test_a_worker_that_dies_is_no_hang_and_no_end():
    seen = run(2, Faults(dies={(0, 1)}))
    assert stand(seen, "p2p.ce.0-1") == ("error", "p2p.failed")
    assert "killed by SIGKILL" in seen["p2p.ce.0-1"].detail["message"]
    assert stand(seen, "p2p.ce.1-0") == ("measured", None)


@pytest.mark.parametrize(("broken", "workers"), [(False, 1), (True, 2)])
def test_an_error_of_cuda_costs_a_worker_only_where_its_contexts_are_gone(broken, workers):
    seen = run(2, Faults(error={(0, 1)}, broken=broken))
    assert stand(seen, "p2p.ce.0-1") == ("error", "p2p.failed")
    assert "CUDA_ERROR_LAUNCH_FAILED" in seen["p2p.ce.0-1"].detail["message"]
    assert stand(seen, "p2p.ce.1-0") == ("measured", None)
    assert seen["p2p"].detail["workers"] == workers
    assert seen["p2p"].cause == "p2p.failed"


def test_data_that_is_wrong_only_in_large_copies():
    seen = run(2, Faults(late_flip={(1, 0)}))
    each = seen["p2p.ce.1-0"]
    assert (each.status, each.cause) == ("error", "p2p.wrong_data")
    assert each.detail["data"]["first_copy"] is None
    assert each.detail["data"]["timed_copies"]["words"] >= 1
    assert stand(seen, "p2p.ce_both.0-1") == ("measured", None)
    assert stand(seen, "p2p.ce_both.1-0") == ("error", "p2p.wrong_data")
    assert seen["p2p"].value == 1


def test_nobody_follows_pointers_that_come_through_a_link_that_lies():
    seen = run(2, Faults(flipped={(1, 0)}))
    assert stand(seen, "p2p.sm_read.1-0") == ("error", "p2p.wrong_data")
    assert stand(seen, "p2p.latency.0-1") == ("not_measured", "p2p.not_reached")
    assert "no pointer can be followed" in seen["p2p.latency.0-1"].detail["message"]
    assert stand(seen, "p2p.latency.1-0") == ("measured", None)
    assert stand(seen, "p2p.together.all_pairs.ce") == ("not_measured", "p2p.not_reached")


def test_no_access_at_all_is_a_fact_and_no_error():
    seen = run(2, Faults(no_access={(0, 1), (1, 0)}))
    assert (seen["p2p"].status, seen["p2p"].value) == ("measured", 2)
    assert seen["p2p"].detail["no_peer_access"][:2] == ["access.0-1", "access.1-0"]
    assert seen["p2p.ce.0-1"].detail["held"] is False
    assert seen["p2p.ce.0-1"].detail["peer_access"] is False
    assert stand(seen, "p2p.latency.0-1") == ("not_measured", "p2p.no_peer_access")
    assert stand(seen, "p2p.together.all_pairs.sm_write") == ("not_measured", "p2p.no_peer_access")
    assert stand(seen, "p2p.together.all_pairs.ce") == ("measured", None)


def test_more_gpus_than_one_may_reach_at_a_time():
    seen = run(4, Faults(most_peers=2))
    assert (seen["p2p"].value, seen["p2p"].detail["failed"]) == (12, [])
    assert stand(seen, "p2p.sm_write.3-1") == ("measured", None)
    assert stand(seen, "p2p.together.ring.sm_write") == ("measured", None)
    assert seen["p2p"].status == "measured"
    assert stand(seen, "p2p.together.all_pairs.sm_write") == ("not_measured", "p2p.no_peer_access")
    assert "that many others" in seen["p2p.together.all_pairs.sm_write"].detail["message"]


def test_while_others_work_data_is_compared_and_no_speed_said():
    seen = run(2, Faults(in_use="process 4711 uses GPU 0"))
    assert stand(seen, "p2p.ce.0-1") == ("not_measured", "gpu.in_use")
    assert seen["p2p.ce.0-1"].value is None
    assert (seen["p2p"].status, seen["p2p"].cause, seen["p2p"].value) == ("not_measured", "gpu.in_use", 2)


def test_while_others_work_wrong_data_is_still_an_error():
    seen = run(2, Faults(in_use="process 4711 uses GPU 0", zeros={(0, 1)}))
    assert stand(seen, "p2p.ce.0-1") == ("error", "p2p.wrong_data")
    assert (seen["p2p"].status, seen["p2p"].cause, seen["p2p"].value) == ("error", "p2p.wrong_data", 1)


def test_writes_that_collapse_together():
    seen = run(3, Faults(crowd=0.1))
    assert seen["p2p.ce.0-1"].value == pytest.approx(50)
    each = seen["p2p.together.all_to_one.sm_write"]
    assert each.detail["expected_share"] == 0.5
    assert each.value < 0.25
    assert each.detail["of_expected"] == pytest.approx(each.value / 0.5, rel=0.01)
    assert len(each.detail["flows"]) == 6
    assert seen["p2p.together.ring.ce"].value == pytest.approx(1)


def test_quick_is_a_ring():
    seen = run(3, options=Options(quick=True))
    names = [name for name in seen if name.startswith("p2p.ce")]
    assert names == ["p2p.ce.0-1", "p2p.ce.1-2", "p2p.ce.2-0"]
    assert (seen["p2p"].value, seen["p2p"].status) == (3, "measured")
    assert not any("together" in name or "latency" in name for name in seen)


def test_quick_with_a_hang():
    seen = run(3, Faults(hang={(1, 2)}), options=Options(quick=True), step_s=1.0)
    assert stand(seen, "p2p.ce.1-2") == ("error", "p2p.hang")
    assert stand(seen, "p2p.ce.2-0") == ("measured", None)


def test_a_hang_over_nvlink_is_not_blamed_on_pcie(monkeypatch):
    def read(session, addresses, access):
        return {(i, j): Link("nvlink", "NV18", 18, 26.562) for i in (0, 1) for j in (0, 1)}

    monkeypatch.setattr(p2p_work, "read_links", read)
    message = run(2, Faults(hang={(0, 1)}), step_s=1.0)["p2p.ce.0-1"].detail["message"]
    assert "fabric manager" in message
    assert "ACS" not in message
