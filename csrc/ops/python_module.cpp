// What a library of ops has to do with Python: it can be imported as an empty module, as tools do that walk through all
// modules of a package, and long ops ask for signals.
// Python's limited API, and weak symbols: the library stays the same for all Pythons, and loads without one.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <memory>

#include "signals.h"

extern "C" {

#define SOFTRANK_WEAK __attribute__((weak))
SOFTRANK_WEAK PyObject* PyModuleDef_Init(PyModuleDef*);
SOFTRANK_WEAK int Py_IsInitialized(void);
SOFTRANK_WEAK PyGILState_STATE PyGILState_Ensure(void);
SOFTRANK_WEAK void PyGILState_Release(PyGILState_STATE);
SOFTRANK_WEAK PyObject* PyErr_Occurred(void);
SOFTRANK_WEAK int PyErr_CheckSignals(void);
SOFTRANK_WEAK void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
SOFTRANK_WEAK void PyErr_Restore(PyObject*, PyObject*, PyObject*);
SOFTRANK_WEAK int Py_AddPendingCall(int (*)(void*), void*);

__attribute__((visibility("default"))) PyObject* SOFTRANK_PYTHON_INIT() {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, SOFTRANK_PYTHON_NAME, nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModuleDef_Init(&definition);
}
}

namespace softrank {
namespace {

// Python's exception, kept while C++ goes back to Python by one of its own.
struct Raised {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
};

int raise_again(void* raised) {
  const std::unique_ptr<Raised> own(static_cast<Raised*>(raised));
  PyErr_Restore(own->type, own->value, own->traceback);
  return -1;
}

}  // namespace

bool is_interrupted() {
  if (Py_IsInitialized == nullptr || !Py_IsInitialized()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool is_raised = PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0;
  if (is_raised) {
    auto raised = std::make_unique<Raised>();
    PyErr_Fetch(&raised->type, &raised->value, &raised->traceback);
    if (Py_AddPendingCall(raise_again, raised.get()) == 0) raised.release();
  }
  PyGILState_Release(state);
  return is_raised;
}

}  // namespace softrank
