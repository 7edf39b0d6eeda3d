"""From tags to boxes on the generated data, with the real trunk: what is learned finds objects that were never boxed."""

import pytest

from melm.demo import run_demo
from melm.model.backbones.sources import PACKAGES


@pytest.mark.slow
def test_melm_learns_where_things_are_and_wsddn_locks_onto_parts(tmp_path, capsys):
    pytest.importorskip(PACKAGES["lite0"].replace("-", "_"))
    outcomes = run_demo(tmp_path / "demo", train_images=150, test_images=40)
    printed = capsys.readouterr().out
    melm, wsddn = outcomes["MELM"], outcomes["WSDDN"]
    # A box drawn at random from the proposals is right in about 1 of 20.
    assert melm.corloc.mean >= MELM_CORLOC, printed
    assert melm.mean_ap >= MELM_MAP, printed
    assert melm.corloc.mean > wsddn.corloc.mean + 0.05, printed
    assert melm.accuracy > wsddn.accuracy, printed
    for name in ("melm", "wsddn"):
        assert (tmp_path / "demo" / f"{name}.jpg").stat().st_size > 50_000
        assert (tmp_path / "demo" / f"run-{name}" / "model.json").is_file()
