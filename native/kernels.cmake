# The kernels, once per instruction set: one source, compiled with other flags into a namespace of its own and
# chosen at run time. On other processors than x86-64 there is the platform's default alone.
find_package(Threads REQUIRED)
set(QUANTKV_KERNELS "${CMAKE_CURRENT_LIST_DIR}/src")

add_library(quantkv_kernels STATIC
  "${QUANTKV_KERNELS}/dispatch.cpp"
  "${QUANTKV_KERNELS}/threads.cpp")
set_target_properties(quantkv_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
target_include_directories(quantkv_kernels PUBLIC "${QUANTKV_KERNELS}")
target_link_libraries(quantkv_kernels PUBLIC Threads::Threads ${CMAKE_DL_LIBS})

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(QUANTKV_ISAS v2 v3 v4)
else()
  set(QUANTKV_ISAS base)
endif()
# Attention may fuse multiplications and additions; encoding must round like the formula says, step by step.
# -Wuninitialized misfires on the "undefined" vectors of gcc 12's own intrinsics.
set(QUANTKV_FLAGS_attend -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
set(QUANTKV_FLAGS_encode -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)

foreach(isa ${QUANTKV_ISAS})
  foreach(part attend encode)
    set(object quantkv_${part}_${isa})
    add_library(${object} OBJECT "${QUANTKV_KERNELS}/${part}.cpp")
    target_include_directories(${object} PRIVATE "${QUANTKV_KERNELS}")
    target_compile_definitions(${object} PRIVATE QUANTKV_ISA=${isa})
    target_compile_options(${object} PRIVATE ${QUANTKV_FLAGS_${part}} ${QUANTKV_EXTRA_FLAGS})
    if(NOT isa STREQUAL base)
      target_compile_options(${object} PRIVATE -march=x86-64-${isa})
    endif()
    if(isa STREQUAL v4)
      target_compile_options(${object} PRIVATE -mprefer-vector-width=512)
    endif()
    set_target_properties(${object} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
    target_sources(quantkv_kernels PRIVATE $<TARGET_OBJECTS:${object}>)
  endforeach()
  target_compile_definitions(quantkv_kernels PRIVATE QUANTKV_HAS_${isa})
endforeach()
