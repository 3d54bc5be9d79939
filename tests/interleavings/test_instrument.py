"""Gates stand only where another session can come in between."""

from tests.interleavings.instrument import gated

SOURCE = """
declare
  at timestamptz := clock();   -- not here; nor here
begin
  select ';' into x from (select 1; ) t; -- one;
  if x = $a$ ; $a$ then
    perform f(";");
    return false;
  end if;
  for y in select 1 loop
    update t set z = case when true then 1 else 2 end;
  end loop;
  return query select 1;
  return;
end
"""
G = " assert leasehold.gate();"


def test_a_gate_stands_after_begin_and_after_each_statement_that_goes_on():
    text = gated(SOURCE)
    assert text.replace(G, "") == SOURCE
    assert [line.strip().removesuffix(G) for line in text.splitlines() if G in line] == [
        "begin",
        f"select ';' into x from (select 1; ) t;{G} -- one;",
        'perform f(";");',
        "update t set z = case when true then 1 else 2 end;",
        "return query select 1;",
    ]
