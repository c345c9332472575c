// One part alone: the planner needs no sockets, threads or devices.
#include <kaitian/plan/planner.h>

#include <cstdio>

int main() {
  using namespace kaitian;
  plan::Collective collective;
  collective.kind = plan::Kind::allReduce;
  collective.dtype = DType::f32;
  collective.op = ReduceOp::sum;
  collective.counts = {1000};
  const auto spans = plan::spansOf(collective, 4);
  std::printf("%zu span(s)\n", spans.ok() ? spans.value().size() : 0);
  return spans.ok() && spans.value().size() == 1 ? 0 : 1;
}
