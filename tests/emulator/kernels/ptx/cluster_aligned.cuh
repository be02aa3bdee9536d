// Shadows kernels/ptx/cluster_aligned.cuh: fails unless the warp has converged immediately before.
#pragma once
#include "tests/emulator/simt.h"

namespace opfacade {

inline void end_cluster_round() {
  simt::wait(simt::cluster->meeting, simt::current->cluster_round);
  simt::order::acquire(&simt::cluster->meeting, simt::current->cluster_round);
}
inline void aligned_cluster_arrive() {
  simt::come_together("lanes of a warp come to a cluster barrier at different times");
  simt::current->cluster_round = simt::arrive(simt::cluster->meeting, simt::cluster->threads);
}
inline void aligned_cluster_publish() {
  simt::order::release(&simt::cluster->meeting, simt::cluster->meeting.round);
  aligned_cluster_arrive();
}
inline void aligned_cluster_wait() {
  simt::come_together("lanes of a warp wait at a cluster barrier at different times");
  end_cluster_round();
}
inline void aligned_cluster_sync() {
  aligned_cluster_publish();
  end_cluster_round();
}

}  // namespace opfacade
