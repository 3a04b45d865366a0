startTheme();
if (scene.sweep) startSweep(document.getElementById("page"));
if (scene.views && scene.views.length) startLanes(document.getElementById("page"));
(scene.tables || []).forEach((table) => document.getElementById("page").append(tableCard(table, { isWide: true })));
