// Lets Python import a library of ops as an empty module, as tools do that walk through all modules of a package.
// Python's limited API, and a weak symbol: the library stays the same for all Pythons, and loads without one.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

extern "C" {

__attribute__((weak)) PyObject* PyModuleDef_Init(PyModuleDef*);

__attribute__((visibility("default"))) PyObject* SOFTRANK_PYTHON_INIT() {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, SOFTRANK_PYTHON_NAME, nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModuleDef_Init(&definition);
}
}
