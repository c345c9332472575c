// Which operators autocast runs in which precision: those of torch's CPU, so that training in mixed precision
// gives the same numbers there and here.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace kaitian::emulator {
namespace {

// clang-format off
#define EMULATOR_LOWER(_) \
  _(conv1d) _(conv1d, padding) _(conv2d) _(conv2d, padding) _(conv3d) _(conv3d, padding) _(bmm) _(mm) \
  _(linalg_vecdot) _(baddbmm) _(addmm) _(_addmm_activation) _(addbmm) _(linear) _(matmul) _(conv_tbc) \
  _(_convolution, deprecated) _(conv_transpose1d) _(conv_transpose2d, input) _(conv_transpose3d, input) \
  _(prelu) _(scaled_dot_product_attention) _(_native_multi_head_attention)
#define EMULATOR_FLOAT(_) \
  _(avg_pool3d) _(binary_cross_entropy) _(grid_sampler) _(polar) _(prod) _(prod, dim_int) _(quantile) \
  _(quantile, scalar) _(cdist) _(trace) _(inverse) _(pinverse) _(max_pool3d) _(adaptive_avg_pool3d) \
  _(reflection_pad1d) _(reflection_pad2d) _(replication_pad1d) _(replication_pad2d) _(replication_pad3d) \
  _(mse_loss) _(cosine_embedding_loss) _(nll_loss) _(nll_loss2d) _(hinge_embedding_loss) _(poisson_nll_loss) \
  _(smooth_l1_loss) _(cross_entropy_loss) _(l1_loss) _(huber_loss) _(margin_ranking_loss) _(soft_margin_loss) \
  _(triplet_margin_loss) _(multi_margin_loss) _(ctc_loss, IntList) _(ctc_loss, Tensor) _(kl_div) \
  _(multilabel_margin_loss) _(binary_cross_entropy_with_logits) _(linalg_solve) _(linalg_inv) _(linalg_svd) \
  _(linalg_qr) _(linalg_cholesky) _(linalg_eigh) _(linalg_lstsq)
#define EMULATOR_PROMOTE(_) _(stack) _(cat) _(index_copy)
// clang-format on

#define EMULATOR_LOWER_KERNEL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define EMULATOR_FLOAT_KERNEL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define EMULATOR_PROMOTE_KERNEL(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  EMULATOR_LOWER(EMULATOR_LOWER_KERNEL)
  EMULATOR_FLOAT(EMULATOR_FLOAT_KERNEL)
  EMULATOR_PROMOTE(EMULATOR_PROMOTE_KERNEL)
}

}  // namespace
}  // namespace kaitian::emulator
