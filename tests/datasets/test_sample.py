import collections

from tffcl.datasets import available, load, tokenise


def test_size_and_balance():
    data = load("sample")
    assert available("sample")
    assert len(data.train_texts) >= 600
    assert len(data.test_texts) >= 120
    assert data.label_names == ("abbreviation", "description", "entity", "human", "location", "number")
    for labels in (data.train_labels, data.test_labels):
        counts = collections.Counter(labels.tolist())
        assert len(counts) == 6
        assert max(counts.values()) < 1.4 * min(counts.values())


def test_no_question_twice():
    data = load("sample")
    questions = [" ".join(tokenise(text)) for text in data.train_texts + data.test_texts]
    assert len(set(questions)) == len(questions)


def test_reads_as_questions():
    data = load("sample")
    for text in data.train_texts + data.test_texts:
        assert text[0].isupper(), text
        assert text.endswith(("?", ".")), text
        assert text == " ".join(text.split()), text
        assert 3 <= len(text.split()) <= 20, text


def test_not_from_trec(data_dir):
    trec = load("trec6", data_dir)
    theirs = {"".join(tokenise(text)) for text in trec.train_texts + trec.test_texts}
    data = load("sample")
    assert not [text for text in data.train_texts + data.test_texts if "".join(tokenise(text)) in theirs]
