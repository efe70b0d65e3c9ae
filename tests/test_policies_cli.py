"""The list of methods: every one in it, all about those that are named, and a way out of a wrong name."""

from __future__ import annotations

from inertia.methods import METHODS, main


def test_every_method_is_listed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {name for name in METHODS if any(line.split()[:1] == [name] for line in lines)} == set(METHODS)


def test_a_named_one_says_its_scope_cost_and_settings(capsys):
    assert main(["tova_decode", "snapkv"]) == 0
    out = capsys.readouterr().out
    assert "scope: per_layer" in out and "scope: the prompt, once" in out
    assert "cost: scored every step" in out and "settings: compression_ratio" in out


def test_a_wrong_name_is_refused(capsys):
    assert main(["inertia"]) == 2
    assert "no method inertia; there are full_cache, inertiakv" in capsys.readouterr().err
