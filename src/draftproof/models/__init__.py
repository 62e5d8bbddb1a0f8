"""The embedded demo pair: a small target, a smaller draft with its tokenizer, and prompts.

Both folders load with `AutoModelForCausalLM` and `AutoTokenizer`; importing this module loads
nothing. How the pair was trained: `docs/demo-pair.md`.
"""

from pathlib import Path

__all__ = ["DEMO_PROMPTS", "demo_paths"]

DEMO_PROMPTS: tuple[str, ...] = (
    "The",
    "Return a new",
    "This module provides functions for reading",
    "When an exception is raised inside a function, the interpreter",
    "A list is a mutable sequence of objects. Items may be added at the end, inserted at any "
    "position, or removed again, and the list grows as needed. The length of a list is",
    "The with statement is used when a resource must be released whatever happens. A file, a lock "
    "or a connection is acquired when the block is entered and is given back when the block is "
    "left, even if the block is left because of an error.\n\nThe object that manages the resource "
    "is called a context manager. It has two methods. The first one is called on entry, and its "
    "result is bound to the target of the statement. The second one is called on exit, and it",
    "Classes are a way to keep data and the functions that work on it together. When a class is "
    "defined, a new namespace is created and used as the local scope, so all assignments to local "
    "variables go into this new namespace. Function definitions bind the name of the new function "
    "here.\n\nWhen the end of the definition is reached, a class object is created. It is a "
    "wrapper around the contents of the namespace. The original scope is then restored, and the "
    "class object is bound in it to the name given in the header of the definition.\n\nA class "
    "object supports two kinds of operations, attribute references and instantiation. Attribute "
    "references use the usual syntax, the object followed by a dot and a name. Valid names are "
    "all the names that were in the namespace when the class object was",
    "Names refer to objects. Names are introduced by operations that bind them, such as an "
    "assignment, the header of a function, an import or the target of a loop. A block is a piece "
    "of the program that is executed as a unit. A module, the body of a function and the "
    "definition of a class are all blocks.\n\nIf a name is bound in a block, it is a local "
    "variable of that block, unless it is declared to be global. If a name is bound at the level "
    "of the module, it is a global variable. If a variable is used in a block but not defined "
    "there, it is a free variable.\n\nWhen a name is used in a block, it is looked up in the "
    "nearest enclosing scope. The set of all scopes that can be seen from a block is called its "
    "environment. When a name is not found at all, an error is raised. If the current scope is "
    "the scope of a function, and the name refers to a local variable that has not yet been bound "
    "to a value at the point where the name",
)


def demo_paths() -> tuple[Path, Path]:
    """The folders of the target and of the draft."""
    here = Path(__file__).parent
    return here / "demo_target", here / "demo_draft"
