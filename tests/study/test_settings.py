"""Settings files: what they mean, and the messages for wrong ones."""

from pathlib import Path

import pytest

from sandtable.errors import StudyError
from sandtable.study import StudySettings, load_settings
from sandtable.study.method import Method
from sandtable.study.settings import Training, settings_from


def settings_in(folder: Path, text: str) -> StudySettings:
    file = folder / "study.toml"
    file.write_text(text)
    return load_settings(file)


def message_of(folder: Path, text: str) -> str:
    with pytest.raises(StudyError) as caught:
        settings_in(folder, text)
    return str(caught.value)


def test_empty_file_is_the_ten_configurations_on_cifar10(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, "")
    assert (settings.data, settings.workers, settings.batch, settings.epochs) == ("cifar10", 8, 100, 30)
    assert len(settings.methods) == 10
    assert settings.methods[0].sync == "BulkSynchronous()"
    assert [method.name for method in settings.methods if "32" in method.name] == ["LocalSGD(32), all-reduce"]


def test_file_says_methods_and_network(tmp_path: Path) -> None:
    settings = settings_in(
        tmp_path,
        """
        workers = 4
        [network]
        kind = "lab"
        rate_mbit = 20
        [[methods]]
        name = "mine"
        sync = "LocalSGD(period=8)"
        compression = "TopK(0.01)"
        """,
    )
    assert (settings.workers, settings.network.kind, settings.network.rate_mbit) == (4, "lab", 20)
    assert settings.methods[0].compression == "TopK(0.01)"


def test_unknown_key_is_named_with_its_file_and_the_nearest_known_one(tmp_path: Path) -> None:
    text = message_of(tmp_path, "worker = 4")
    assert "study.toml" in text
    assert "did you mean 'workers'" in text


def test_value_out_of_range_gives_key_rule_value_and_meaning(tmp_path: Path) -> None:
    text = message_of(tmp_path, "[training]\nmomentum = 1.5")
    assert "training.momentum must be less than 1, but got 1.5; it is momentum of SGD" in text


def test_method_that_is_no_call_is_refused_at_its_key(tmp_path: Path) -> None:
    text = message_of(tmp_path, '[[methods]]\nname = "x"\nsync = "LocalSGD(period=__import__(\'os\').nice)"')
    assert "methods.0.sync must" in text
    assert "write it as in Python" in text


def test_methods_of_one_name_are_refused(tmp_path: Path) -> None:
    assert "rename one" in message_of(tmp_path, '[[methods]]\nname = "a b"\n[[methods]]\nname = "A-B"')


def test_missing_file_and_broken_toml_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="the file must exist"):
        load_settings(tmp_path / "none.toml")
    assert "valid TOML" in message_of(tmp_path, "workers = = 3")


def test_settings_survive_json(tmp_path: Path) -> None:
    settings = StudySettings().changed(workers=3, kind="lab", rate_mbit=10.0)
    assert settings.network.rate_mbit == 10
    assert settings_from(settings.model_dump(mode="json"), source="x") == settings


def test_fingerprint_changes_with_what_matters_and_only_then() -> None:
    settings = StudySettings()
    method = settings.methods[0]
    assert settings.fingerprint(method) == settings.changed(rate_mbit=7.0).fingerprint(method)
    assert settings.fingerprint(method) != settings.changed(epochs=2).fingerprint(method)
    assert settings.fingerprint(method) != settings.changed(kind="lab").fingerprint(method)
    assert settings.fingerprint(method) == settings.fingerprint(method.model_copy(update={"name": "other"}))
    assert settings.fingerprint(method) != settings.fingerprint(settings.methods[1])


def test_runs_stored_before_there_were_kinds_are_still_found() -> None:
    settings = StudySettings()
    sparse = Method(
        name="sparse",
        sync="LocalSGD(period=16)",
        exchange="Gossip()",
        compression="Threshold(share=0.05)",
        learning_rate=0.1,
    )
    found = [settings.fingerprint(method) for method in (settings.methods[0], sparse)]
    assert found == ["c94465e3", "5b840101"]


def test_kind_is_part_of_what_a_result_depends_on() -> None:
    settings = StudySettings()
    plain, rain, more = (Method(name="m", kind=kind) for kind in (None, "Downpour()", "Downpour(n_push=2)"))
    assert len({settings.fingerprint(method) for method in (plain, rain, more)}) == 3


def test_kind_stands_alone(tmp_path: Path) -> None:
    table = '[[methods]]\nname = "x"\nkind = "Downpour()"\n'
    assert settings_in(tmp_path, table).methods[0].expression == "Downpour()"
    text = message_of(tmp_path, table + 'exchange = "Gossip()"')
    assert "methods.0.exchange must be left out where kind is given (Downpour()), but got 'Gossip()'" in text
    assert "remove one of the two" in text


def test_kind_that_is_no_call_is_refused_at_its_key(tmp_path: Path) -> None:
    text = message_of(tmp_path, '[[methods]]\nname = "x"\nkind = "open(\'x\').read()"')
    assert "methods.0.kind must" in text
    assert "write it as in Python" in text


def test_command_line_value_out_of_range_is_refused() -> None:
    with pytest.raises(StudyError, match="workers must be less than or equal to 200, but got 999"):
        StudySettings().changed(workers=999)


def test_method_trains_as_the_study_says_but_for_what_it_has_of_its_own() -> None:
    settings = StudySettings(training=Training(learning_rate=0.3, momentum=0.8))
    own = Method(name="own", learning_rate=0.1, momentum=0.0, warm_up_epochs=1)
    assert settings.training_of(Method(name="plain")) == settings.training
    assert settings.training_of(own) == Training(learning_rate=0.1, momentum=0.0, warm_up_epochs=1)
