/* Lua as a program: runs the script that its first argument names, with the second as SCALE, and prints what went
 * wrong on standard error. */
#include "lauxlib.h"
#include "lua.h"
#include "lualib.h"

#include <stdio.h>

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: %s SCRIPT SCALE\n", arguments[0]);
        return 2;
    }
    lua_State *state = luaL_newstate();
    luaL_openlibs(state);
    lua_pushstring(state, arguments[2]);
    lua_setglobal(state, "SCALE");
    int status = luaL_dofile(state, arguments[1]);
    if (status != LUA_OK)
        fprintf(stderr, "%s\n", lua_tostring(state, -1));
    lua_close(state);
    return status == LUA_OK ? 0 : 1;
}
