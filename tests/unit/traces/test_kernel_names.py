"""Short names: what goes, what stays, and that what tells kernels apart stays."""

import pytest

from peakward.traces.kernel_names import short_name

POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 3ul> >"
    "(int, {}, std::array<char*, 3ul>)"
)
ADD = "at::native::CUDAFunctor_add<float>"
GELU = (
    "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}"
    "::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}"
)
MUL = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"


def pointwise(functor: str) -> str:
    return POINTWISE.replace("{}", functor, 2)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (pointwise(ADD), "vectorized_elementwise_kernel<CUDAFunctor_add<float>>"),
        (pointwise(GELU), "vectorized_elementwise_kernel<GeluCUDAKernelImpl<BFloat16>>"),
        (pointwise(MUL), "vectorized_elementwise_kernel<BinaryFunctor<float, MulFunctor>>"),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::"
            "gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, float, float, at::native::"
            "binary_internal::MulFunctor<float>>>(at::TensorIteratorBase &, const T1 &)::"
            "[lambda(int) (instance 1)]>(int, T3)",
            "elementwise_kernel<BinaryFunctor<float, MulFunctor>>",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
            "func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()"
            "(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4> >"
            "(at::native::ReduceOp<float>)",
            "reduce_kernel<float, sum_functor>",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
            "(anonymous namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::"
            "BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float>(int)",
            "multi_tensor_apply_kernel<BinaryOpScalarFunctor<float>, multiplies>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>"
            "(cutlass_80_simt_sgemm_256x128_8x4_nt_align1::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_nt_align1",
        ),
        (
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, "
            "(bool)0, (bool)0, cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)128, (int)64, "
            "(int)4, cutlass::bfloat16_t>>, (bool)0>(flash::Flash_fwd_params)",
            "flash_fwd_kernel<128, bfloat16_t>",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::"
            "CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1> >, cutlass::half_t>, "
            "flash::CollectiveEpilogueFwd<cute::tuple<cute::C<128> >, cutlass::half_t>, "
            "flash::StaticPersistentTileScheduler<false> > > >(T1::Params)",
            "FlashAttnFwdSm90",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, 7>(T1)",
            "gemvx::kernel<int, float>",
        ),
        (
            "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(float silu<float>"
            "(float const&))>(__nv_bfloat16*, __nv_bfloat16 const*, int)",
            "act_and_mul_kernel<__nv_bfloat16, silu<float>>",
        ),
        (
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            "ncclDevKernel_SendRecv",
        ),
        ("_ZN5aiter32fmha_fwd_hd192_hd128_bf16_causalE.kd", "fmha_fwd_hd192_hd128_bf16_causal"),
        ("_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelEEEvv", "FmhaFwdKernel"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        ("nvjet_sm90_tst_96x128_64x6_2x1_v_bz_NNN", "nvjet_sm90_tst_96x128_64x6_2x1_v_bz_NNN"),
        ("triton_poi_fused_add_cat_mul_2", "triton_poi_fused_add_cat_mul_2"),
        ("", ""),
    ],
)
def test_a_name_keeps_what_tells(name: str, short: str) -> None:
    assert short_name(name) == short


def test_functors_of_one_kernel_are_told_apart() -> None:
    assert len({short_name(pointwise(functor)) for functor in (ADD, GELU, MUL)}) == 3
