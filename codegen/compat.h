// compat.h: the one place that knows LLVM versions. LLVM 19 is what is tested.
#ifndef CODEGEN_COMPAT_H
#define CODEGEN_COMPAT_H

#include <llvm-c/Analysis.h>
#include <llvm-c/Core.h>
#include <llvm-c/DebugInfo.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <llvm/Config/llvm-config.h>

#if LLVM_VERSION_MAJOR < 19
#error "LLVM 19 or later is needed (fast-math flags and operand bundles of the C interface)"
#endif

#endif
